package tabular

// This file tests documents in both forms.

import (
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
)

// writeBoth writes a document in both forms.
func writeBoth(t *testing.T, d Document) (text, markdown string) {
	t.Helper()
	var a, b strings.Builder
	if err := errors.Join(d.WriteText(&a), d.WriteMarkdown(&b)); err != nil {
		t.Fatal(err)
	}
	return a.String(), b.String()
}

func TestDocument(t *testing.T) {
	for name, test := range map[string]struct {
		d              Document
		text, markdown string
	}{
		"nothing": {nil, "", ""},
		"a report": {
			Document{
				Lines{"model: m|1", "limit: 3"},
				&Table{
					Columns: slices.Concat(Left("variant"), Right("tok/s"), Left("why")),
					Rows:    [][]string{{"plain", "1.5", "it is"}, {"a|b", "12", ""}, {"größer", "7", "x"}},
				},
				Lines{"done"},
			},
			"model: m|1\nlimit: 3\n\n" +
				"variant  tok/s  why\n" +
				"plain      1.5  it is\n" +
				"a|b         12\n" +
				"größer       7  x\n" +
				"\ndone\n",
			"* model: m|1\n* limit: 3\n\n" +
				"| variant | tok/s | why |\n" +
				"| --- | ---: | --- |\n" +
				"| plain | 1.5 | it is |\n" +
				"| a\\|b | 12 |  |\n" +
				"| größer | 7 | x |\n" +
				"\n* done\n",
		},
		"titles, and parts with nothing in them": {
			Document{
				Lines{}, &Table{Title: "First", Columns: Right("n"), Rows: [][]string{{"100"}, {"2"}}},
				Lines(nil), &Table{}, &Table{Title: "Second", Columns: Left("n")},
			},
			"First\n  n\n100\n  2\n\nSecond\nn\n",
			"First\n\n| n |\n| ---: |\n| 100 |\n| 2 |\n\nSecond\n\n| n |\n| --- |\n",
		},
		"no names": {
			Document{&Table{
				Columns: slices.Concat(Left(""), Right("")),
				Rows:    [][]string{{"decodes", "5"}, {"rows", "1,234"}},
			}},
			"decodes      5\nrows     1,234\n",
			"|  |  |\n| --- | ---: |\n| decodes | 5 |\n| rows | 1,234 |\n",
		},
		"no columns at all": {
			Document{&Table{Rows: [][]string{{"a", "b"}, {"cc"}}}},
			"a   b\ncc\n",
			"|  |  |\n| --- | --- |\n| a | b |\n| cc |  |\n",
		},
		"rows too short and too long": {
			Document{&Table{Columns: Left("x", "y"), Rows: [][]string{{"1"}, {"1", "2", "3"}, nil}}},
			"x  y\n1\n1  2  3\n\n",
			"| x | y |  |\n| --- | --- | --- |\n| 1 |  |  |\n| 1 | 2 | 3 |\n|  |  |  |\n",
		},
		"cells of several lines": {
			Document{&Table{Columns: Left("x", "y"), Rows: [][]string{{"a\nb", "c\td"}}}},
			"x     y\na\\nb  c\\td\n",
			"| x | y |\n| --- | --- |\n| a\\nb | c\\td |\n",
		},
	} {
		text, markdown := writeBoth(t, test.d)
		if text != test.text {
			t.Errorf("%s: text\n%q\nwant\n%q", name, text, test.text)
		}
		if markdown != test.markdown {
			t.Errorf("%s: Markdown\n%q\nwant\n%q", name, markdown, test.markdown)
		}
	}
}

// Writing does not change the table, so that it can be written again.
func TestWritingKeepsTheTable(t *testing.T) {
	d := Document{&Table{Columns: Left("x", "y"), Rows: [][]string{{"a|b", "1"}, {"long cell", "2"}}}}
	text, markdown := writeBoth(t, d)
	again, markdownAgain := writeBoth(t, d)
	if text != again || markdown != markdownAgain {
		t.Errorf("the second time\n%s%s\nwant as the first time\n%s%s", again, markdownAgain, text, markdown)
	}
}

func TestErrorsAreTheWriters(t *testing.T) {
	f, err := os.Create(t.TempDir() + "/closed")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	d := Document{Lines{"x"}}
	for name, err := range map[string]error{"text": d.WriteText(f), "Markdown": d.WriteMarkdown(f)} {
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: error %v, want %v", name, err, os.ErrClosed)
		}
	}
}

// Sections are written from top to bottom, and picked by name in any order.
func TestSections(t *testing.T) {
	s := Sections{{"a", Document{Lines{"one"}}}, {"b", nil}, {"c", Document{Lines{"two"}, Lines{"three"}}}}
	if text, _ := writeBoth(t, s.Document()); text != "one\n\ntwo\n\nthree\n" {
		t.Errorf("%q", text)
	}
	d, err := s.Pick("c", "b", "a")
	if text, _ := writeBoth(t, d); err != nil || text != "two\n\nthree\n\none\n" {
		t.Errorf("%v, %q", err, text)
	}
	if d, err := s.Pick("a", "x"); d != nil || err == nil || !strings.Contains(err.Error(), `"x": it has a, b, c`) {
		t.Errorf("%v, error %v, want one that names the parts", d, err)
	}
}
