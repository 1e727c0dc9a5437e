package out

import (
	"io"
	"strings"
	"unicode/utf8"
)

// gap separates columns.
const gap = "  "

// Grid is a table in the making: a head and rows of cells, columns as wide as their widest cell. Cells may carry colour:
// widths are counted without it.
type Grid struct {
	// Indent stands before every line.
	Indent string
	rows   [][]string
}

// NewGrid returns a table with this head. A head of empty cells is not written.
func NewGrid(head ...string) *Grid { return &Grid{rows: [][]string{head}} }

// Row adds a row. Missing cells are empty; line breaks inside a cell become spaces.
func (g *Grid) Row(cells ...string) {
	row := make([]string, len(cells))
	for i, cell := range cells {
		row[i] = strings.Join(strings.Fields(cell), " ")
	}
	g.rows = append(g.rows, row)
}

// Len is the number of rows without the head.
func (g *Grid) Len() int { return len(g.rows) - 1 }

// WriteTo writes the table. Lines have no trailing blanks, and a column in which every cell is empty is left out.
func (g *Grid) WriteTo(w io.Writer) (int64, error) {
	var widths []int
	for i, row := range g.rows {
		for column, cell := range row {
			if column == len(widths) {
				widths = append(widths, 0)
			}
			if i > 0 {
				widths[column] = max(widths[column], width(cell))
			}
		}
	}
	for column, cell := range g.rows[0] {
		if widths[column] > 0 {
			widths[column] = max(widths[column], width(cell))
		}
	}
	var text strings.Builder
	rows := g.rows
	if strings.Join(rows[0], "") == "" {
		rows = rows[1:]
	}
	for _, row := range rows {
		var line strings.Builder
		line.WriteString(g.Indent)
		for column, wide := range widths {
			if wide == 0 {
				continue
			}
			cell := ""
			if column < len(row) {
				cell = row[column]
			}
			line.WriteString(cell)
			line.WriteString(strings.Repeat(" ", wide-width(cell)))
			line.WriteString(gap)
		}
		text.WriteString(strings.TrimRight(line.String(), " "))
		text.WriteByte('\n')
	}
	n, err := io.WriteString(w, text.String())
	return int64(n), err
}

// width is the number of characters that a cell takes on a terminal, colour not counted.
func width(cell string) int {
	count := 0
	for {
		start := strings.IndexByte(cell, escape)
		if start < 0 {
			return count + utf8.RuneCountInString(cell)
		}
		count += utf8.RuneCountInString(cell[:start])
		end := strings.IndexByte(cell[start:], 'm')
		if end < 0 {
			return count
		}
		cell = cell[start+end+1:]
	}
}
