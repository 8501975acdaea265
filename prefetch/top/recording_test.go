package top

// This file draws a recorded run as frames of a film, which README shows.

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"image/color"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	uv "github.com/charmbracelet/ultraviolet"
	"github.com/charmbracelet/x/ansi"

	"tensorcast/prefetch/monitor"
)

// recording is what the prefetchd of a real run said every second, a line of JSON each. It was made like this, while
// llama.cpp generated in a control group that has no room for all of the model:
//
//	while sleep 1; do
//		printf '{"at":"%s","report":%s}\n' "$(date -u +%FT%T.%3NZ)" \
//			"$(curl -s --unix-socket /run/prefetchd/TARGET.sock 'http://prefetchd/status?detail' || echo null)"
//	done
//
// Only the names of the model and of the control group were changed. In the end prefetchd was killed.
var recording = filepath.Join("testdata", "recording.jsonl")

// film is the picture that README shows.
var film = filepath.Join("..", "..", "docs", "top.svg")

const (
	filmWidth, filmHeight = 100, 30 // cells
	frameTime             = time.Second
)

// recorded is what a prefetchd said; nothing once it was killed.
type recorded struct {
	At     time.Time       `json:"at"`
	Report *monitor.Report `json:"report"`
}

// README's picture is what the live view shows of the recorded run.
func TestRecording(t *testing.T) {
	text, err := os.ReadFile(recording)
	if err != nil {
		t.Fatal(err)
	}
	m := New(nil, filmWidth, filmHeight)
	var frames []string
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r recorded
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		survey := monitor.Survey{}
		if r.Report != nil {
			survey.Reports = append(survey.Reports, *r.Report)
		} else if m.selected != nil {
			survey.Left = append(survey.Left, m.selected.report.Target)
		}
		m.Update(surveyed{survey, r.At, nil})
		frames = append(frames, m.Frame())
	}
	if len(frames) < 10 || lines.Err() != nil {
		t.Fatalf("%d frames, %v", len(frames), lines.Err())
	}
	got := drawFilm(frames)
	if *update {
		if err := os.WriteFile(film, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(film)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs from what the live view shows; if that is meant, run the test with -update and look at it", film)
	}
	if len(want) > 400<<10 {
		t.Errorf("%s has %d bytes, which is too much for a README", film, len(want))
	}
}

// drawFilm draws frames one after the other. A viewer that moves nothing shows the last one.
func drawFilm(frames []string) []byte {
	const column, row, edge = 8.0, 17.0, 10.0
	width, height := filmWidth*column+2*edge, filmHeight*row+2*edge
	var svg bytes.Buffer
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" width="%.0f" height="%.0f" `+
		`font-family="DejaVu Sans Mono,Menlo,Consolas,monospace" font-size="13">`+"\n", width, height, width, height)
	fmt.Fprintf(&svg, "<style>text{white-space:pre}.f{visibility:hidden;animation:k %ds step-end infinite}\n"+
		"@keyframes k{0%%{visibility:visible}%.4f%%{visibility:hidden}}</style>\n",
		len(frames)*int(frameTime/time.Second), 100/float64(len(frames)))
	draw := func(frame string) {
		fmt.Fprintf(&svg, `<rect width="%.0f" height="%.0f" rx="6" fill="%s"/>`+"\n", width, height, background)
		screen := uv.NewScreenBuffer(filmWidth, filmHeight)
		screen.Method = ansi.GraphemeWidth
		uv.NewStyledString(frame).Draw(screen, screen.Bounds())
		for y := range filmHeight {
			for x := 0; x < filmWidth; {
				text, style, n := runAt(screen, x, y)
				drawRun(&svg, text, style, edge+float64(x)*column, edge+float64(y)*row, float64(n)*column, row)
				x += n
			}
		}
	}
	draw(frames[len(frames)-1])
	for i, frame := range frames {
		fmt.Fprintf(&svg, `<g class="f" style="animation-delay:%ds">`+"\n", i*int(frameTime/time.Second))
		draw(frame)
		svg.WriteString("</g>\n")
	}
	svg.WriteString("</svg>\n")
	return svg.Bytes()
}

// runAt is the text of the same style that begins at a cell, and how many cells it has.
func runAt(screen uv.ScreenBuffer, x, y int) (text string, style uv.Style, n int) {
	var run strings.Builder
	for first := true; x+n < filmWidth; first = false {
		c := screen.CellAt(x+n, y)
		of := uv.Style{}
		if c != nil {
			of = c.Style
		}
		if first {
			style = of
		}
		if !of.Equal(&style) {
			break
		}
		content := " "
		if c != nil && c.Content != "" {
			content = c.Content
		}
		run.WriteString(content)
		n++
	}
	return run.String(), style, n
}

// drawRun draws text in a rectangle.
func drawRun(svg *bytes.Buffer, text string, style uv.Style, x, y, width, height float64) {
	fill, behind := hex(style.Fg, foreground), ""
	if style.Attrs&uv.AttrReverse != 0 {
		behind, fill = fill, background
	}
	if behind != "" {
		fmt.Fprintf(svg, `<rect x="%.0f" y="%.0f" width="%.0f" height="%.0f" fill="%s"/>`, x, y, width, height, behind)
	}
	if strings.TrimSpace(text) == "" {
		return
	}
	weight := ""
	if style.Attrs&uv.AttrBold != 0 {
		weight = ` font-weight="bold"`
	}
	fmt.Fprintf(svg, `<text x="%.0f" y="%.1f" textLength="%.0f" fill="%s"%s>%s</text>`+"\n",
		x, y+height*0.77, width, fill, weight, html.EscapeString(text))
}

// The film's colours, of a terminal that is dark.
const background, foreground = "#16181d", "#d8dee9"

// palette is what a terminal makes of the first sixteen colours.
var palette = []string{
	"#3b4252", "#e06c75", "#98c379", "#e5c07b", "#61afef", "#c678dd", "#56b6c2", "#d8dee9",
	"#7f8694", "#ff7b85", "#b5e890", "#ffd68a", "#82c4ff", "#e29bff", "#7fe0ec", "#ffffff",
}

// hex is a colour as SVG has it.
func hex(c color.Color, otherwise string) string {
	switch c := c.(type) {
	case nil:
		return otherwise
	case ansi.BasicColor:
		return palette[int(c)%len(palette)]
	case ansi.IndexedColor:
		if int(c) < len(palette) {
			return palette[c]
		}
	}
	r, g, b, _ := c.RGBA()
	return fmt.Sprintf("#%02x%02x%02x", r>>8, g>>8, b>>8)
}
