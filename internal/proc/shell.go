package proc

// This file quotes words for a shell.

import "strings"

// Quote writes each text as one word in the shell's syntax, and separates the words by spaces.
func Quote(texts ...string) string {
	quoted := make([]string, len(texts))
	for i, text := range texts {
		quoted[i] = "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
	}
	return strings.Join(quoted, " ")
}
