package value

import "strings"

// Nearest returns the candidate that the word was probably meant to be.
func Nearest(word string, candidates []string) (string, bool) {
	best, found := "", false
	limit := min(3, 1+len(word)/4)
	for _, c := range candidates {
		if d := distance(strings.ToLower(word), strings.ToLower(c)); d <= limit {
			best, found, limit = c, true, d-1
		}
	}
	return best, found
}

// distance is the number of letters to insert, delete, replace or swap with
// their neighbour to make a into b (optimal string alignment).
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			d := min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				d = min(d, rows[i-2][j-2]+1)
			}
			rows[i][j] = d
		}
	}
	return rows[len(a)][len(b)]
}
