package results

// This file takes the paths of a machine out of a document.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
)

// machinePath matches a path that begins at the root or at a directory that is named by points, at the beginning of a
// word. Its last part is the third group.
var machinePath = regexp.MustCompile(`(^|[\s"'=(:,])(\.{0,2}/(?:[\w.@+~-]+/)*)([\w.@+~-]+)`)

// textKey is the key of what a model has said. A path in it is none.
const textKey = "text"

// Publish returns the document with the last parts of paths instead of the paths, for others to read: "model.gguf"
// where "/home/me/model.gguf" stood, in the command, in what helpers have said, and everywhere else but in the texts
// that a model generated. Paths that begin with the name of a directory, as in old/bin/prefetchd, stay. It fails if two
// commands of a series, which are told apart by a path, would be the same then.
func (d *Document) Publish() (*Document, error) {
	before, err := countVariants(d.Report)
	if err != nil {
		return nil, err
	}
	p := *d
	p.BaseNames, p.Command = true, withoutPaths(d.Command)
	if p.Report, err = withoutPathsIn(d.Report); err != nil {
		return nil, err
	}
	after, err := countVariants(p.Report)
	if err != nil {
		return nil, err
	}
	if after < before {
		return nil, fmt.Errorf("of %d variants some differ only in a path of this machine: name them by paths that "+
			"begin with a directory's name, as in old/bin/prefetchd, and measure again", before)
	}
	if err := p.deriveFromReport(); err != nil {
		return nil, err
	}
	return &p, p.check()
}

// HasPaths returns a path of a machine that a document's command or report has; empty if there is none.
func (d *Document) HasPaths() (path string) {
	if m := machinePath.FindString(d.Command); m != "" {
		return m
	}
	var found string
	_, _ = replaceStrings(d.Report, func(s string) string { // that it is no JSON is reported by others
		if m := machinePath.FindString(s); m != "" && found == "" {
			found = m
		}
		return s
	})
	return found
}

func withoutPaths(s string) string { return machinePath.ReplaceAllString(s, "$1$3") }

func withoutPathsIn(data []byte) ([]byte, error) { return replaceStrings(data, withoutPaths) }

// countVariants counts the different commands of a report's variants. Variants that differ only in their names are the
// same: they measure noise.
func countVariants(report []byte) (int, error) {
	var r struct {
		Variants []struct{ Helper, Launcher, Flags string } `json:"variants"`
	}
	if err := json.Unmarshal(report, &r); err != nil {
		return 0, fmt.Errorf("%w: %w", ErrNotDocument, err)
	}
	different := map[any]bool{}
	for _, v := range r.Variants {
		different[v] = true
	}
	return len(different), nil
}

// replaceStrings returns JSON with replaced strings. Keys, and strings below the key "text", stay, and so does
// everything between strings.
func replaceStrings(data []byte, replace func(string) string) ([]byte, error) {
	if !json.Valid(data) {
		return nil, fmt.Errorf("%w: the report is no JSON", ErrNotDocument)
	}
	var out bytes.Buffer
	key := ""
	for len(data) > 0 {
		begin := bytes.IndexByte(data, '"')
		if begin < 0 {
			break
		}
		end := begin + 1
		for data[end] != '"' { // it ends somewhere: the JSON is valid
			if data[end] == '\\' {
				end++
			}
			end++
		}
		literal := data[begin : end+1]
		out.Write(data[:begin])
		data = data[end+1:]
		var s string
		if err := json.Unmarshal(literal, &s); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrNotDocument, err)
		}
		if rest := bytes.TrimLeft(data, " \t\r\n"); len(rest) > 0 && rest[0] == ':' {
			key = s
		} else if key != textKey {
			if replaced := replace(s); replaced != s {
				var err error
				if literal, err = encode(replaced); err != nil {
					return nil, err
				}
			}
		}
		out.Write(literal)
	}
	out.Write(data)
	return out.Bytes(), nil
}
