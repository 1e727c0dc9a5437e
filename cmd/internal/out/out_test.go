package out

import (
	"bytes"
	"strings"
	"testing"
)

func TestEveryFormatHoldsTheSameFields(t *testing.T) {
	value := struct {
		Name string `json:"name"`
		When string `json:"when"`
		N    int    `json:"count"`
	}{"web", "a < b", 3}
	for format, want := range map[Format]string{
		JSON:   "{\n  \"name\": \"web\",\n  \"when\": \"a < b\",\n  \"count\": 3\n}\n",
		NDJSON: "{\"name\":\"web\",\"when\":\"a < b\",\"count\":3}\n",
		YAML:   "name: web\nwhen: a < b\ncount: 3\n",
	} {
		var got bytes.Buffer
		if err := Write(&got, format, value); err != nil {
			t.Fatalf("%s: %v", format, err)
		}
		if got.String() != want {
			t.Errorf("%s: got %q, want %q", format, got.String(), want)
		}
	}
	if err := Write(&bytes.Buffer{}, Table, value); err == nil {
		t.Error("a table of a value: no error")
	}
}

func TestFormatFlagNamesWhatItTakes(t *testing.T) {
	flag := NewFormatFlag(Table, JSON)
	if flag.Format() != Table {
		t.Errorf("default %q, want table", flag.Format())
	}
	err := flag.Set("xml")
	if err == nil || !strings.Contains(err.Error(), "table, json") {
		t.Errorf("got %v, want the formats named", err)
	}
	if err := flag.Set("json"); err != nil || flag.Format() != JSON {
		t.Errorf("got %q and %v, want json", flag.Format(), err)
	}
}

func TestGridAlignsColouredCellsAndDropsEmptyColumns(t *testing.T) {
	grid := NewGrid("NAME", "STATE", "NOTE", "N")
	grid.Indent = " "
	grid.Row("a", Style{Color: true}.Good("Succeeded"), "", "1")
	grid.Row("longer\nname", "Failed", "", "20")
	var got bytes.Buffer
	if _, err := grid.WriteTo(&got); err != nil {
		t.Fatal(err)
	}
	want := " NAME         STATE      N\n a            \x1b[32mSucceeded\x1b[0m  1\n longer name  Failed     20\n"
	if got.String() != want {
		t.Errorf("got\n%q, want\n%q", got.String(), want)
	}
}

func TestLiveNeverWrapsAndNeverLeavesTheScreen(t *testing.T) {
	var got bytes.Buffer
	live := NewLive(&got, func() (int, int) { return 5, 4 })
	if err := live.Draw("1234567\n2\n3\n4\n5\n"); err != nil {
		t.Fatal(err)
	}
	if want := "\r\x1b[J1234…\n2\n… 3 …\n"; got.String() != want {
		t.Errorf("first frame %q, want %q", got.String(), want)
	}
	got.Reset()
	if err := live.Draw("é\n"); err != nil {
		t.Fatal(err)
	}
	if want := "\x1b[3A\r\x1b[Jé\n"; got.String() != want {
		t.Errorf("second frame %q, want %q", got.String(), want)
	}
}

func TestCleanDisarmsControlSequences(t *testing.T) {
	if got := Clean("a\x1b[2Jb\r\nc\td\u009b"); got != "a [2Jb \nc\td " {
		t.Errorf("got %q", got)
	}
}
