package monitor

// This file tests that the names which people build on are documented.

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// jsonNames lists the JSON names of a struct's fields. Those of structs in it come behind their field's name and a
// point.
func jsonNames(t reflect.Type, before string) (all []string) {
	for f := range t.Fields() {
		if !f.IsExported() {
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Type.Kind() == reflect.Struct && f.Type.PkgPath() != "time" {
			all = append(all, jsonNames(f.Type, before+name+".")...)
		} else {
			all = append(all, before+name)
		}
	}
	return all
}

// SECURITY.md names everything that may be asked at the socket, and what may be set there.
func TestRequestsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	requests, request := 0, regexp.MustCompile(`"((?:GET|PUT|POST|DELETE) /[a-z/]+)"`)
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		code, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range request.FindAllStringSubmatch(string(code), -1) {
			if requests++; !strings.Contains(string(text), "`"+m[1]+"`") {
				t.Errorf("SECURITY.md does not say that the socket takes %s", m[1])
			}
		}
	}
	if requests < 3 {
		t.Errorf("%d requests were found, want at least 3", requests)
	}
}

// The document has each name that JSON and metrics have.
func TestNamesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/status.md")
	if err != nil {
		t.Fatal(err)
	}
	has := func(name string) {
		t.Helper()
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("docs/status.md does not have %s", name)
		}
	}
	json := jsonNames(reflect.TypeFor[Report](), "")
	for _, name := range json {
		has(name)
	}
	if len(json) < 18 {
		t.Errorf("%d names, want at least 18: %q", len(json), json)
	}
	for _, m := range metricsOf(&Report{}) {
		has(strings.TrimPrefix(m.name, "tensorcast_prefetchd_"))
	}
}
