package tests

import (
	"image/png"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestTheReadmesPicturesAreThere fails when the README shows a picture that the tree does not hold, or that is none.
func TestTheReadmesPicturesAreThere(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile(`!\[[^\]]+\]\(([^)]+)\)`).FindAllSubmatch(readme, -1)
	if len(shown) == 0 {
		t.Fatal("the README shows no picture")
	}
	for _, match := range shown {
		name := string(match[1])
		file, err := os.Open(filepath.Join("..", filepath.FromSlash(name)))
		if err != nil {
			t.Error(err)
			continue
		}
		if _, err := png.DecodeConfig(file); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		file.Close()
	}
}
