package monitor

// This file tests that the names which people build on are documented.

import (
	"os"
	"reflect"
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
