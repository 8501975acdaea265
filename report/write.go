package report

// This file writes the page.

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"html"
	"io"
)

var (
	//go:embed page/page.html
	pageHTML []byte
	//go:embed page/style.css
	pageStyle []byte
	//go:embed page/page.js
	pageScript []byte
)

// Write writes the page. An error says what is wrong with the report, such as series of different lengths
// or cells of unknown types, or it is an error of w.
func (r *Report) Write(w io.Writer) error {
	for b := usualBounds; ; b = b.half() { // texts may be longer than they are in models
		page, err := r.render(b)
		if err != nil {
			return fmt.Errorf("make the page: %w", err)
		}
		if len(page) > MaxBytes && b.half() != b {
			continue
		}
		if _, err := w.Write(page); err != nil {
			return fmt.Errorf("write the page: %w", err)
		}
		return nil
	}
}

func (r *Report) render(b bounds) ([]byte, error) {
	fitted, err := fitReport(r, b)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(fitted) // <, > and & are escaped: no text can end the script element
	if err != nil {
		return nil, err
	}
	page := pageHTML
	for _, part := range []struct {
		mark string
		text []byte
	}{
		{"/*STYLE*/", pageStyle},
		{"/*SCRIPT*/", pageScript},
		{"@DATA@", data},
		// This is done last: the title's mark is the first in the page, and marks in the title or in the
		// data are not replaced.
		{"@TITLE@", []byte(html.EscapeString(fitted.Title))},
	} {
		page = bytes.Replace(page, []byte(part.mark), part.text, 1)
	}
	return page, nil
}
