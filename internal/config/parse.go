package config

// This file reads the YAML of a file, strictly.

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/agnivade/levenshtein"
	"go.yaml.in/yaml/v3"
)

// Parse reads the settings in a file's content, in the order of the file. where is the file's path, for errors. The
// error joins a [*Problem] for each thing that is wrong; then there are no settings. An empty file has none.
func Parse(where string, data []byte, keys Keys) ([]Setting, error) {
	p := parser{where: where, keys: keys}
	if document := p.readOne(data); document != nil {
		p.readDocument(document)
	}
	if len(p.problems) > 0 {
		return nil, errors.Join(p.problems...)
	}
	return p.settings, nil
}

// readOne reads the only document of a file; nil if the file is empty or no YAML, or has another document.
func (p *parser) readOne(data []byte) *yaml.Node {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, more yaml.Node
	err := decoder.Decode(&document)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err == nil {
		if err = decoder.Decode(&more); err == nil {
			p.refuse(&more, "a second document begins: want one")
			return nil
		}
	}
	if !errors.Is(err, io.EOF) {
		p.refuseSyntax(err)
		return nil
	}
	return &document
}

// parser collects what a file says, and what is wrong with it.
type parser struct {
	where    string
	keys     Keys
	settings []Setting
	problems []error
}

// refuse notes what is wrong with a part of the file.
func (p *parser) refuse(at *yaml.Node, format string, args ...any) {
	p.problems = append(p.problems, &Problem{p.where, at.Line, fmt.Sprintf(format, args...)})
}

// syntaxLine is how the library says in which line it is wrong.
var syntaxLine = regexp.MustCompile(`^line ([0-9]+): `)

// refuseSyntax notes that the file is no YAML.
func (p *parser) refuseSyntax(err error) {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 0
	if found := syntaxLine.FindStringSubmatch(text); found != nil {
		line, _ = strconv.Atoi(found[1]) // digits; a number that is too large is no line
		text = strings.TrimPrefix(text, found[0])
	}
	p.problems = append(p.problems, &Problem{p.where, line, "not YAML: " + text})
}

func (p *parser) readDocument(document *yaml.Node) {
	if document.Kind != yaml.DocumentNode || len(document.Content) != 1 {
		p.refuse(document, "want lines such as KEY: VALUE")
		return
	}
	top := document.Content[0]
	if isNull(top) { // only comments
		return
	}
	p.readPairs(top, "lines such as KEY: VALUE", func(key, value *yaml.Node) {
		kind, known := p.keys[key.Value]
		if !known {
			p.refuse(key, "unknown key %q: %s", key.Value, suggest(key.Value, p.keys.names()))
			return
		}
		before := len(p.problems)
		s := Setting{Key: key.Value, Values: p.readValues(key.Value, kind, value)}
		s.Origin = Origin{File, p.where, key.Line}
		if len(p.problems) == before && len(s.Values) > 0 {
			p.settings = append(p.settings, s)
		}
	})
}

// readPairs calls read for each pair of a mapping. want says what is to be there instead of something else.
func (p *parser) readPairs(n *yaml.Node, want string, read func(key, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		p.refuse(n, "want %s, not %s", want, describe(n))
		return
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind != yaml.ScalarNode || isNull(key) {
			p.refuse(key, "want a name before the colon, not %s", describe(key))
			continue
		}
		if first, twice := lines[key.Value]; twice {
			p.refuse(key, "%q is in line %d already: remove one of them", key.Value, first)
			continue
		}
		lines[key.Value] = key.Line
		read(key, n.Content[i+1])
	}
}

// readValues reads the value of a key.
func (p *parser) readValues(key string, kind Kind, n *yaml.Node) (all []Value) {
	text := func(n *yaml.Node, want string) {
		switch {
		case isNull(n):
			p.refuse(n, "%s has no value: write one, or remove the line", key)
		case n.Kind != yaml.ScalarNode:
			p.refuse(n, "%s: want %s, not %s", key, want, describe(n))
		default:
			all = append(all, Value{n.Value, n.Line})
		}
	}
	switch {
	case kind == Map && !isNull(n):
		p.readPairs(n, fmt.Sprintf("lines such as NAME: VALUE below %s", key), func(name, value *yaml.Node) {
			before := len(all)
			if text(value, "one value for each name"); len(all) > before {
				all[before].Text = name.Value + "=" + all[before].Text
			}
		})
	case kind == List && n.Kind == yaml.SequenceNode:
		for _, element := range n.Content {
			text(element, "a list of single values")
		}
	case kind == List:
		text(n, "a value, or a list such as [a, b]")
	default:
		text(n, "one value")
	}
	return all
}

// suggest says which key of names somebody may have meant: the nearest one, and where that is far away, all.
func suggest(key string, names []string) string {
	nearest, least := "", len(key)
	for _, name := range names {
		if d := levenshtein.ComputeDistance(strings.ToLower(strings.ReplaceAll(key, "_", "-")), name); d < least {
			nearest, least = name, d
		}
	}
	if nearest != "" && least <= max(len(key), len(nearest))/2 {
		return fmt.Sprintf("did you mean %q?", nearest)
	}
	return "the keys are " + strings.Join(names, ", ")
}

// isNull says whether there is no value.
func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// describe says what a part of the file is, for people.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias (*" + n.Value + ")"
	}
	if isNull(n) {
		return "nothing"
	}
	return fmt.Sprintf("%q", n.Value)
}
