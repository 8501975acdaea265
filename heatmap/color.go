package heatmap

// This file maps values to colours.

import (
	"image/color"
	"math"
)

// cividis holds ten equidistant colours of the map with that name (Nuñez, Anderton, Renslow 2018). It
// looks the same with and without red-green colour blindness. Here it runs from light to dark: on white
// paper, more is darker, and a missing read stands out.
var cividis = [...]color.RGBA{
	{0xfe, 0xe8, 0x38, 0xff},
	{0xe1, 0xcc, 0x55, 0xff},
	{0xc3, 0xb3, 0x69, 0xff},
	{0xa5, 0x9c, 0x74, 0xff},
	{0x8a, 0x86, 0x78, 0xff},
	{0x70, 0x71, 0x73, 0xff},
	{0x57, 0x5d, 0x6d, 0xff},
	{0x3b, 0x49, 0x6c, 0xff},
	{0x12, 0x35, 0x70, 0xff},
	{0x00, 0x22, 0x4e, 0xff},
}

var (
	white       = color.RGBA{0xff, 0xff, 0xff, 0xff}
	ink         = color.RGBA{0x20, 0x20, 0x20, 0xff}
	faint       = color.RGBA{0x90, 0x90, 0x90, 0xff} // ticks, and lines from labels to their rows
	frame       = color.RGBA{0xb0, 0xb0, 0xb0, 0xff}
	notRead     = white
	notObserved = color.RGBA{0xdc, 0xdc, 0xe4, 0xff} // drawn with a cross, so that it is not mistaken for a value
	markColor   = color.RGBA{0xd5, 0x5e, 0x00, 0xff} // vermilion: the colour-blind can tell it from cividis
)

// scalePosition is the position of a share on the colour scale, from 0 to 1. The square root makes small
// shares visible, such as 4 of 128 experts at 0.18, without the arbitrary lower limit of a logarithm.
func scalePosition(share float64) float64 { return math.Sqrt(min(max(share, 0), 1)) }

// scaleColor is the colour at a position from 0 to 1.
func scaleColor(pos float64) color.RGBA {
	x := min(max(pos, 0), 1) * float64(len(cividis)-1)
	i := min(int(x), len(cividis)-2)
	f := x - float64(i)
	mix := func(a, b uint8) uint8 { return uint8(math.Round(float64(a) + f*(float64(b)-float64(a)))) }
	a, b := cividis[i], cividis[i+1]
	return color.RGBA{mix(a.R, b.R), mix(a.G, b.G), mix(a.B, b.B), 0xff}
}

// cellColor is the colour of an observed value.
func cellColor(v float32) color.RGBA {
	if v <= 0 {
		return notRead
	}
	return scaleColor(scalePosition(float64(v)))
}
