package chart

// This file works around faults in the SVG that gonum (vg/vgsvg of v0.17) writes.

import (
	"bytes"
	"io"

	"gonum.org/v1/plot/vg/vgsvg"
)

// svgCanvas writes SVG that common viewers show correctly.
type svgCanvas struct{ *vgsvg.Canvas }

// corrections are pairs of a text that gonum writes and its replacement. Images are PNG, although
// gonum says JPEG. Where Liberation's fonts are missing, fonts of the same widths are tried first.
var corrections = [][2]string{
	{`"data:image/jpg;base64,`, `"data:image/png;base64,`},
	{`font-family:Liberation Sans;`, `font-family:'Liberation Sans',Arimo,Arial,Helvetica,sans-serif;`},
}

func (s svgCanvas) WriteTo(w io.Writer) (int64, error) {
	var b bytes.Buffer
	if _, err := s.Canvas.WriteTo(&b); err != nil {
		return 0, err
	}
	svg := b.Bytes()
	for _, c := range corrections {
		svg = bytes.ReplaceAll(svg, []byte(c[0]), []byte(c[1]))
	}
	n, err := w.Write(svg)
	return int64(n), err
}
