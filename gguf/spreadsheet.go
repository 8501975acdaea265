package gguf

// This file owns what keeps names that come from a file from doing harm in a table.

import "strings"

// SpreadsheetCell makes the text of a CSV cell safe for a spreadsheet, which takes a cell that begins with one of these for a formula.
func SpreadsheetCell(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r\n", rune(s[0])) {
		return "'" + s
	}
	return s
}
