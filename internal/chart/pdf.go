package chart

// This file works around faults of gonum's PDF canvas (vg/vgpdf of v0.17).

import (
	"image"
	"image/color"
	"image/draw"
	"strings"

	stdfont "golang.org/x/image/font"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/vgpdf"
)

// pdfCanvas draws images upright and on white. It replaces characters that its fonts do not encode,
// and bold letters, which would end in an error.
type pdfCanvas struct{ *vgpdf.Canvas }

func (c pdfCanvas) DrawImage(at vg.Rectangle, img image.Image) {
	b := img.Bounds()
	flipped := image.NewRGBA(b)
	draw.Draw(flipped, b, image.NewUniform(color.White), image.Point{}, draw.Src)
	line := image.Rect(b.Min.X, 0, b.Max.X, 1)
	for y := b.Min.Y; y < b.Max.Y; y++ {
		to := b.Max.Y - 1 - (y - b.Min.Y)
		draw.Draw(flipped, line.Add(image.Pt(0, to)), img, image.Pt(b.Min.X, y), draw.Over)
	}
	c.Canvas.DrawImage(at, flipped)
}

func (c pdfCanvas) FillString(f font.Face, at vg.Point, s string) {
	if f.Font.Weight > stdfont.WeightNormal {
		regular := f.Font
		regular.Weight = stdfont.WeightNormal
		f = font.DefaultCache.Lookup(regular, regular.Size)
	}
	s = strings.ReplaceAll(s, "…", "...")
	s = strings.Map(func(r rune) rune {
		if r >= 0x80 {
			return '?'
		}
		return r
	}, s)
	c.Canvas.FillString(f, at, s)
}
