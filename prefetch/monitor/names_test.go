package monitor

import (
	"os"
	"reflect"
	"strings"
	"testing"
)

// names are the JSON names of a struct's fields, with those of structs in it behind a point.
func names(t reflect.Type, before string) (all []string) {
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Type.Kind() == reflect.Struct && f.Type.PkgPath() != "time" {
			all = append(all, names(f.Type, before+name+".")...)
		} else {
			all = append(all, before+name)
		}
	}
	return all
}

// The document has each name that JSON and metrics have: people build on them.
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
	json := names(reflect.TypeFor[Report](), "")
	for _, name := range json {
		has(name)
	}
	if len(json) < 18 {
		t.Errorf("%q", json)
	}
	for _, m := range metricsOf(&Report{}) {
		has(strings.TrimPrefix(m.name, "tensorcast_prefetchd_"))
	}
}
