package chart

// This file mends what gonum (vg/vgsvg of v0.17) writes of SVG.

import (
	"bytes"
	"io"

	"gonum.org/v1/plot/vg/vgsvg"
)

// svgCanvas writes SVG as other readers than gonum's own expect it.
type svgCanvas struct{ *vgsvg.Canvas }

// mends are pairs of what is written, and what it is to be: images are PNG, whatever gonum says, and where Liberation's fonts are missing, those with the same widths come first.
var mends = [][2]string{
	{`"data:image/jpg;base64,`, `"data:image/png;base64,`},
	{`font-family:Liberation Sans;`, `font-family:'Liberation Sans',Arimo,Arial,Helvetica,sans-serif;`},
}

func (c svgCanvas) WriteTo(w io.Writer) (int64, error) {
	var b bytes.Buffer
	if _, err := c.Canvas.WriteTo(&b); err != nil {
		return 0, err
	}
	svg := b.Bytes()
	for _, m := range mends {
		svg = bytes.ReplaceAll(svg, []byte(m[0]), []byte(m[1]))
	}
	n, err := w.Write(svg)
	return int64(n), err
}
