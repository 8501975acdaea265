package proc

// This file tests which processes are below another one.

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
)

// Children and grandchildren are below a process, the parent first. The process itself is not.
func TestBelow(t *testing.T) {
	cmd := exec.Command("sh", "-c", `sh -c 'echo $$; sleep 1000 & echo $!; read line; kill $!'; true`)
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { stdin.Close(); _ = cmd.Wait() }()
	var child, grandchild int
	lines := bufio.NewReader(stdout)
	if _, err := fmt.Fscan(lines, &child, &grandchild); err != nil {
		t.Fatal(err)
	}
	want := []Started{{child, cmd.Process.Pid}, {grandchild, child}}
	if got, err := Below(cmd.Process.Pid); err != nil || !slices.Equal(got, want) {
		t.Errorf("Below = %v, %v; want %v", got, err, want)
	}
	if got, err := Below(os.Getpid()); err != nil || !slices.Contains(got, want[1]) {
		t.Errorf("Below of this process = %v, %v; want %v among them", got, err, want[1])
	}
	if got, err := Below(grandchild); err != nil || len(got) > 0 {
		t.Errorf("Below of one that has started none = %v, %v; want none", got, err)
	}
}
