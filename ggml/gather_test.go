package ggml

// These tests compare the table of gathering ops in Go and C.

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A C program gets the same table as Go, and its line numbers stay as they were.
func TestIncludeGathers(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip(err)
	}
	source := IncludeGathers(`#include <stdio.h>
#include "gathers.h" // as a comment may follow
int main(void) {
	for (const struct gather *g = gathers; g < gathers + GATHERS; g++)
		printf("{%s %d %d %d %s}", g->op, g->source, g->ids, g->dim, g->experts ? "true" : "false");
	printf(" %d", __LINE__);
}
`)
	path := filepath.Join(t.TempDir(), "gathers")
	cmd := exec.Command(gcc, "-std=gnu11", "-Wall", "-Werror", "-o", path, "-x", "c", "-")
	cmd.Stdin = strings.NewReader(source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(path).Output()
	if err != nil {
		t.Fatal(err)
	}
	want := ""
	for _, g := range Gathers() {
		want += fmt.Sprint(g)
	}
	if want += " 6"; string(out) != want || len(Gathers()) < 3 {
		t.Errorf("C has %s, Go %s", out, want)
	}
}

// Callers cannot change the table.
func TestGathersAreCopied(t *testing.T) {
	Gathers()[0].Op = "NOTHING"
	if g, ok := GatherOf("GET_ROWS"); !ok || g.Dim != 1 || g.Experts {
		t.Errorf("GatherOf(GET_ROWS) = %+v, %v, want dimension 1 and no experts", g, ok)
	}
	if g, ok := GatherOf("MUL_MAT"); ok {
		t.Errorf("GatherOf(MUL_MAT) = %+v, want none", g)
	}
}
