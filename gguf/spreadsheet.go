package gguf

// This file keeps spreadsheets from taking names in a file for formulas.

import "strings"

// SpreadsheetCell makes text safe as a CSV cell: it puts an apostrophe before text that a
// spreadsheet would take for a formula.
func SpreadsheetCell(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r\n", rune(s[0])) {
		return "'" + s
	}
	return s
}
