package results

// This file checks the figures in sentences: each is in a table nearby, or in a list that says where it is from.

import (
	"encoding/csv"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// proseList is a table of the figures in sentences that no table nearby has: the page, the figure with its unit as it
// stands there, and where it is from.
const proseList = "in-prose.csv"

var (
	// measuredFigure matches a number with a unit of what is measured: "2.7 times", "10 to 14 ms", "3 and 4 %". The
	// numbers before "to" and "and" have the unit of the last.
	measuredFigure = regexp.MustCompile(`(?:^|[^\w.,/–-])(\d[\d,]*(?:\.\d+)?)((?:(?:,| to| and| or) \d[\d,]*(?:\.\d+)?)*) ?` +
		`(%|times|tok/s|tokens per second|GiB/s|GB/s|MiB/s|MB/s|ms|us|ns)(?:\W|$)`)
	plainNumber = regexp.MustCompile(`\d[\d,]*(?:\.\d+)?`)
	codeSpan    = regexp.MustCompile("`[^`]*`")
	linkedPage  = regexp.MustCompile(`\]\(([^)#]*\.md)[^)]*\)`)
)

// page is a text: the numbers of its tables and of what else is made from data, and its lines of prose by number.
type page struct {
	cells []string
	prose map[int]string
}

func readPage(t *testing.T, path string) page {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p, fence, made := page{prose: map[int]string{}}, "", false
	for i, line := range strings.Split(string(data), "\n") {
		mark := fenceOf(line)
		switch {
		case mark != "" && fence == "":
			fence = mark
		case mark != "" && mark == fence:
			fence = ""
		case fence != "" || strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "<!--"):
			made = line != endMark
		case strings.HasPrefix(line, "*Data: "), strings.HasPrefix(line, "!["):
		case strings.HasPrefix(line, "|") || made:
			p.cells = append(p.cells, plainNumber.FindAllString(linkTarget.ReplaceAllString(line, ""), -1)...)
		default:
			p.prose[i+1] = line
		}
	}
	return p
}

// number is the value of a number in a text, and the step of its last digit.
func number(t *testing.T, text string) (value, step float64) {
	t.Helper()
	text = strings.ReplaceAll(text, ",", "")
	value, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	_, fraction, _ := strings.Cut(text, ".")
	return value, math.Pow10(-len(fraction))
}

// isRounded says whether a figure is a cell that was rounded to its digits, or a cell as a percentage.
func isRounded(t *testing.T, figure string, cells []string) bool {
	value, step := number(t, figure)
	return slices.ContainsFunc(cells, func(cell string) bool {
		of, _ := number(t, cell)
		return math.Abs(of-value) <= step/2+1e-9 || math.Abs(100*of-value) <= step/2+1e-9
	})
}

// A figure in a sentence restates a table of its page or of a page that the same line links to. Others are in a list
// that says where they are from. docs/measurements/rejected.md is left out: its lines are themselves the record.
func TestFiguresInProse(t *testing.T) {
	file, err := os.Open(filepath.Join(root, Dir, CopiedDir, proseList))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	if err != nil || len(rows) < 2 || !slices.Equal(rows[0], []string{"page", "figure", "from"}) {
		t.Fatalf("%s: %v, want the columns page, figure and from", proseList, err)
	}
	listed := map[[2]string]bool{} // whether it was met
	for _, row := range rows[1:] {
		if row[2] == "" {
			t.Errorf("%s: %s of %s is from nowhere", proseList, row[1], row[0])
		}
		listed[[2]string{row[0], row[1]}] = false
	}
	paths := []string{filepath.Join(root, "README.md")}
	for _, pattern := range []string{"docs/measurements/*.md", "thesis-notes/rq*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(found) < 5 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		paths = append(paths, found...)
	}
	met := 0
	for _, path := range paths {
		name, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		if name == "docs/measurements/rejected.md" {
			continue
		}
		p := readPage(t, path)
		for line, text := range p.prose {
			cells := p.cells
			for _, m := range linkedPage.FindAllStringSubmatch(text, -1) {
				if !strings.Contains(m[1], "://") {
					cells = slices.Concat(cells, readPage(t, filepath.Join(filepath.Dir(path), m[1])).cells)
				}
			}
			text = codeSpan.ReplaceAllString(text, "")
			text = strings.NewReplacer("[", "", "]", "", "*", "").Replace(linkTarget.ReplaceAllString(text, ""))
			for _, m := range measuredFigure.FindAllStringSubmatch(text, -1) {
				for _, figure := range plainNumber.FindAllString(m[1]+" "+m[2], -1) {
					met++
					key := [2]string{name, figure + " " + m[3]}
					if _, is := listed[key]; is {
						listed[key] = true
					} else if !isRounded(t, figure, cells) {
						t.Errorf("%s:%d: no table nearby has %s %s: list it in %s, or take it out\n\t%s", name, line, figure, m[3],
							proseList, text)
					}
				}
			}
		}
	}
	for key, was := range listed {
		if !was {
			t.Errorf("%s: %s does not say %q any more", proseList, key[0], key[1])
		}
	}
	if met < 200 {
		t.Errorf("%d figures were met, want more: are they still found?", met)
	}
}
