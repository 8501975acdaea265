package results

// This file puts tables and figures into the project's texts, and checks that those there are what the data give.

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"tensorcast/internal/outfile"
	"tensorcast/internal/regular"
)

// A table in a text stands between two lines:
//
//	<!-- results: NAME [PART...] -->
//	<!-- /results -->
//
// NAME is that of a document in [Dir], and PART says what of its report is shown (see [Document.WriteTable]). With
// figure=FILE.svg instead of parts it is a figure, in a file beside the text or in a directory below. What follows then
// names the variants that are drawn (see [Document.WriteFigure]). Three other forms stand in the place of NAME:
//
//   - versus=BASE,OTHER NAME... is one table of several documents of [Pressure]: how fast the variant OTHER is against
//     the variant BASE in each setting (see [WriteVersus]).
//   - table=NAME is a table whose figures were copied (see [ReadCopied]).
//   - machines= is what was measured on which machine (see [WriteMachines]).
var (
	beginMark = regexp.MustCompile(`^<!-- results: ([^ ]+)((?: [^ ]+)*) -->$`)
	svgForm   = regexp.MustCompile(`^([a-z0-9][a-z0-9-]*/)*[a-z0-9][a-z0-9-]*\.svg$`)
)

const (
	endMark    = "<!-- /results -->"
	markPrefix = "<!-- results"
	// maxText bounds the size of a text, maxFigure that of a figure.
	maxText, maxFigure = 8 << 20, 16 << 20
)

// ErrStale says that a text has another table or figure than its data give.
var ErrStale = errors.New("differs from its data: run make docs, and commit what it changes")

// UpdateDocs replaces the tables and figures in all texts (*.md) of the checkout at root by those that the documents
// in [Dir] give, and returns the files that it changed. If the data have not changed, neither have the files. It leaves
// directories whose names begin with a point, and those that git ignores in this project. A text whose marks are wrong
// is left as it is; the others are updated, and the error names each mark that is wrong.
func UpdateDocs(root string) (changed []string, err error) {
	err = eachFile(root, func(path string, want []byte) error {
		changed = append(changed, path)
		return outfile.Write(path, func(w io.Writer) error {
			_, err := w.Write(want)
			return err
		})
	})
	return changed, err
}

// CheckDocs reports, for each text and figure of the checkout at root, that it differs from what its data give. The
// error wraps [ErrStale] then.
func CheckDocs(root string) error {
	return eachFile(root, func(path string, _ []byte) error { return fmt.Errorf("%s %w", path, ErrStale) })
}

// skipped are directories in which no texts of the project are.
var skipped = map[string]bool{"bin": true, "demo": true, "dist": true, "analysis": true, "node_modules": true,
	"testdata": true}

// eachFile calls differs with each text and figure that is not what its data give, and what they give.
func eachFile(root string, differs func(path string, want []byte) error) error {
	var failed []error
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || skipped[name]) {
				return fs.SkipDir
			}
			return nil
		}
		if !entry.Type().IsRegular() || !strings.HasSuffix(name, ".md") {
			return nil
		}
		failed = append(failed, updateFile(root, path, differs))
		return nil
	})
	return errors.Join(append(failed, err)...)
}

// updateFile calls differs for one text and its figures.
func updateFile(root, path string, differs func(path string, want []byte) error) error {
	have, err := regular.Read(path, maxText)
	if err != nil {
		return err
	}
	if !bytes.Contains(have, []byte(markPrefix)) && !bytes.Contains(have, []byte(endMark)) {
		return nil
	}
	t := &text{path: path, data: filepath.Join(root, Dir), figures: map[string][]byte{}}
	want, err := t.update(string(have))
	if err != nil {
		return err
	}
	var failed []error
	for _, name := range t.names {
		file := filepath.Join(filepath.Dir(path), name)
		figure, err := regular.Read(file, maxFigure)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err != nil || !bytes.Equal(figure, t.figures[name]) {
			failed = append(failed, differs(file, t.figures[name]))
		}
	}
	if want != string(have) {
		failed = append(failed, differs(path, []byte(want)))
	}
	return errors.Join(failed...)
}

// text is a text whose tables are made.
type text struct {
	path    string
	data    string // directory of the documents
	names   []string
	figures map[string][]byte // by name, which is that of a file beside the text
}

// update returns the text with its tables. Marks within fences of code, and those that are indented, are examples.
func (t *text) update(have string) (string, error) {
	var out strings.Builder
	begun, fence := 0, "" // the line of the mark that is open
	for n, line := range strings.SplitAfter(have, "\n") {
		bare := strings.TrimRight(line, "\r\n")
		wrong := func(format string, args ...any) (string, error) {
			return "", fmt.Errorf("%s:%d: %w", t.path, n+1, fmt.Errorf(format, args...))
		}
		if begun == 0 {
			out.WriteString(line)
			if mark := fenceOf(bare); mark != "" && (fence == "" || mark == fence) {
				if fence == "" {
					fence = mark
				} else {
					fence = ""
				}
			}
			switch {
			case fence != "":
			case bare == endMark:
				return wrong("%s without a line that begins a table", endMark)
			case strings.HasPrefix(bare, markPrefix):
				m := beginMark.FindStringSubmatch(bare)
				if m == nil {
					return wrong("%q is no mark: want <!-- results: NAME [PART...] -->", bare)
				}
				content, err := t.content(m[1], strings.Fields(m[2]))
				if err != nil {
					return wrong("%w", err)
				}
				out.WriteString("\n" + content + "\n")
				begun = n + 1
			}
			continue
		}
		switch {
		case bare == endMark:
			out.WriteString(line)
			begun = 0
		case strings.HasPrefix(bare, markPrefix):
			return wrong("another table begins before %s of line %d", endMark, begun)
		}
	}
	if begun > 0 {
		return "", fmt.Errorf("%s:%d: the table has no end: want a line %s", t.path, begun, endMark)
	}
	return out.String(), nil
}

// fenceOf is the mark with which a line opens or closes a fence of code; empty if it does not.
func fenceOf(line string) string {
	for _, mark := range []string{"```", "~~~"} {
		if strings.HasPrefix(strings.TrimLeft(line, " "), mark) {
			return mark
		}
	}
	return ""
}

// content is what stands between two marks, without the empty lines around it.
func (t *text) content(name string, options []string) (string, error) {
	if table, ok := strings.CutPrefix(name, "table="); ok {
		if len(options) > 0 {
			return "", fmt.Errorf("%s: want nothing after table=NAME", options[0])
		}
		return t.copied(table)
	}
	if rest, ok := strings.CutPrefix(name, "machines="); ok {
		return t.machines(rest, options)
	}
	if both, ok := strings.CutPrefix(name, "versus="); ok {
		return t.versus(both, options)
	}
	d, err := ReadNamed(t.data, name)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	if figure, ok := strings.CutPrefix(strings.Join(options[:min(len(options), 1)], ""), "figure="); ok {
		if !svgForm.MatchString(figure) {
			return "", fmt.Errorf("figure=%s: want the name of an SVG file beside the text, as in figure=speed.svg", figure)
		}
		if _, twice := t.figures[figure]; twice {
			return "", fmt.Errorf("figure=%s: another figure has that name", figure)
		}
		var svg bytes.Buffer
		if err := d.WriteFigure(&svg, "svg", options[1:]...); err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		t.names = append(t.names, figure)
		t.figures[figure] = svg.Bytes()
		fmt.Fprintf(&b, "![%s](%s)\n", describeFigure(d.Kind), figure)
	} else if err := d.WriteTable(&b, options...); err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	fmt.Fprintf(&b, "\n*%s*\n", d.source())
	return b.String(), nil
}

// versus is the table that compares two variants in several documents.
func (t *text) versus(both string, names []string) (string, error) {
	base, other, ok := strings.Cut(both, ",")
	if !ok || base == "" || other == "" || len(names) == 0 {
		return "", fmt.Errorf("versus=%s: want versus=BASE,OTHER and then the names of documents", both)
	}
	var all []Named
	for _, name := range names {
		d, err := ReadNamed(t.data, name)
		if err != nil {
			return "", err
		}
		all = append(all, d)
	}
	var b bytes.Buffer
	if err := WriteVersus(&b, all, base, other); err != nil {
		return "", err
	}
	fmt.Fprintf(&b, "\n*%s*\n", sourceOf(all))
	return b.String(), nil
}

// machines says what was measured on which machine.
func (t *text) machines(rest string, options []string) (string, error) {
	if rest != "" || len(options) > 0 {
		return "", errors.New("want nothing after machines=: it shows all documents")
	}
	all, err := ReadDir(t.data)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	err = WriteMachines(&b, all)
	return b.String(), err
}

// copied is a table whose figures were copied.
func (t *text) copied(name string) (string, error) {
	c, err := ReadCopied(t.data, name)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	if err := c.WriteMarkdown(&b); err != nil {
		return "", err
	}
	fmt.Fprintf(&b, "\n*Data: `%s/%s/%s.csv`, copied from what the commands printed; the runs were not kept.*\n", Dir, CopiedDir, name)
	return b.String(), nil
}

// sourceOf says where the data of several documents are. They are listed by commit and machine.
func sourceOf(all []Named) string {
	var lines []string
	files := map[string][]string{}
	for _, d := range all {
		line := fmt.Sprintf("measured on %s with commit %s on %s.", d.Started.UTC().Format("2006-01-02"),
			d.CommitText(), d.machineText())
		if d.Interrupted {
			line += " The series was interrupted."
		}
		if files[line] == nil {
			lines = append(lines, line)
		}
		files[line] = append(files[line], fmt.Sprintf("`%s.json`", d.Name))
	}
	for i, line := range lines {
		lines[i] = fmt.Sprintf("Data: %s in `%s`, %s", strings.Join(files[line], ", "), Dir, line)
	}
	return strings.Join(lines, " ")
}

// source says where a table's data are, and how they came about.
func (d Named) source() string {
	line := fmt.Sprintf("Data: `%s/%s.json`, measured on %s with commit %s on %s.", Dir, d.Name,
		d.Started.UTC().Format("2006-01-02"), d.CommitText(), d.machineText())
	if d.Interrupted {
		line += " The series was interrupted."
	}
	return line
}

// FindCheckout returns the root of the checkout that a directory lies in.
func FindCheckout(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		if info, err := os.Stat(filepath.Join(at, Dir)); err == nil && info.IsDir() {
			if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
				return at, nil
			}
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("%s is in no checkout of tensorcast (none above it has go.mod and %s)", dir, Dir)
		}
	}
}
