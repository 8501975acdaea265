package tabular

// This file defines a report whose parts have names, so that a reader can ask for some of them.

import (
	"fmt"
	"strings"
)

// Section is a part of a report that can be asked for by its name.
type Section struct {
	Name     string
	Document Document // may be empty
}

// Sections are a whole report, from top to bottom. Names differ.
type Sections []Section

// Document returns all sections as one document.
func (s Sections) Document() (d Document) {
	for i := range s {
		d = append(d, s[i].Document...)
	}
	return d
}

// Pick returns the named sections in the order of the names. The error names the sections that there are.
func (s Sections) Pick(names ...string) (d Document, err error) {
	for _, name := range names {
		section, ok := s.find(name)
		if !ok {
			return nil, fmt.Errorf("the report has no part %q: it has %s", name, strings.Join(s.names(), ", "))
		}
		d = append(d, section.Document...)
	}
	return d, nil
}

func (s Sections) find(name string) (Section, bool) {
	for _, section := range s {
		if section.Name == name {
			return section, true
		}
	}
	return Section{}, false
}

func (s Sections) names() (names []string) {
	for _, section := range s {
		names = append(names, section.Name)
	}
	return names
}
