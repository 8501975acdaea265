package proc

// This file writes words for a shell.

import "strings"

// Quote makes words in the shell's syntax of any texts, separated by spaces.
func Quote(texts ...string) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}
