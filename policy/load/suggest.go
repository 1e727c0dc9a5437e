package load

import "strings"

// suggest returns the known name that a misspelt one most likely stands for, or "".
func suggest(name string, known []string) string {
	const longest = 40 // longer names are not slips of the pen, and the comparison is quadratic
	if len(name) > longest {
		return ""
	}
	best, bestDistance := "", 3
	if len(name) <= 4 {
		bestDistance = 2
	}
	for _, candidate := range known {
		if len(candidate) > longest {
			continue
		}
		if strings.EqualFold(plainName(candidate), plainName(name)) {
			return candidate
		}
		if d := distance(strings.ToLower(name), strings.ToLower(candidate)); d < bestDistance {
			best, bestDistance = candidate, d
		}
	}
	return best
}

// plainName is a name without what people write in its place: max_failures, max-failures.
func plainName(name string) string {
	return strings.NewReplacer("_", "", "-", "", " ", "").Replace(name)
}

// distance counts the insertions, deletions, replacements and swaps of neighbours that turn a into b.
func distance(a, b string) int {
	before, row := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next[j+1] = min(row[j]+cost, row[j+1]+1, next[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				next[j+1] = min(next[j+1], before[j-1]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}
