package gguf

// This test makes text safe for spreadsheets.

import "testing"

func TestCellText(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "a": "a", "a=b": "a=b", "=1": "'=1", "+1": "'+1", "-1": "'-1", "@x": "'@x", "\tx": "'\tx",
		"\rx": "'\rx", "\nx": "'\nx", "é=": "é=",
	} {
		if got := SpreadsheetCell(in); got != want {
			t.Errorf("SpreadsheetCell(%q) = %q, want %q", in, got, want)
		}
	}
}
