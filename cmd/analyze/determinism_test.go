package main

// This file tests the subcommand determinism on planted steps that depart.

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tensorcast/internal/cli"
	"tensorcast/trace/tables"
)

func TestDeterminism(t *testing.T) {
	capture := plant(t, tables.Meta{}, true, whole, whole, []int32{1, 2, 3, 0}, whole)
	out := filepath.Join(t.TempDir(), "analysis")
	code, stdout, stderr := execute(t, "determinism", "-c", capture, "-o", out)
	if code != cli.OK || stderr != "" {
		t.Fatalf("exit %d, stderr %q", code, stderr)
	}
	for _, want := range []string{
		"generation: 3 of 4 steps (75 %) read exactly the canonical sequence of their batch size\n",
		"blk.0.ffn_up.weight at 3\n", "unknown", "wrote " + filepath.Join(out, "determinism.png"),
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("output lacks %q:\n%s", want, stdout)
		}
	}
	for name, want := range map[string]string{
		"determinism.csv": "step,token,phase,batch_tokens,reads,exact,skeleton_exact,departure,edits,cause\n" +
			"0,-1,prompt,1,4,1,1,-1,0,\n1,0,generation,1,4,1,1,-1,0,\n2,1,generation,1,4,1,1,-1,0,\n" +
			"3,2,generation,1,4,0,0,0,1,unknown\n4,3,generation,1,4,1,1,-1,0,\n",
		"determinism_edits.csv": "departure,kind,position,to,tensor_name,op,expected_bytes,bytes_accessed\n" +
			"0,order,1,3,blk.0.ffn_up.weight,MUL_MAT,200,200\n",
	} {
		if got, err := os.ReadFile(filepath.Join(out, name)); err != nil || string(got) != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", name, err, got, want)
		}
	}
	// If all steps follow there is no figure, and no earlier one stays.
	capture = plant(t, tables.Meta{}, true, whole, whole)
	code, stdout, stderr = execute(t, "determinism", "-c", capture, "-o", out, "--json")
	var got struct {
		Groups     []struct{ Steps, Following int }
		Departures []any
		Files      []string
	}
	if err := json.Unmarshal([]byte(stdout), &got); code != cli.OK || err != nil || len(got.Groups) != 2 ||
		got.Groups[1].Following != 2 || len(got.Departures) != 0 || len(got.Files) != 4 {
		t.Errorf("exit %d, stderr %q, %v, %+v, want two groups that follow, and four files", code, stderr, err, got)
	}
	if _, err := os.Stat(filepath.Join(out, "determinism.png")); !os.IsNotExist(err) {
		t.Errorf("the earlier figure: error %v, want that it is gone", err)
	}
}
