package packaging_test

// This file tests the way in which the DaemonSet starts prefetchd, on this kernel and without Kubernetes.

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/testenv"
)

// readCommand reads the command of prefetchd's container, and the capabilities of its list "add", in small letters.
func readCommand(t *testing.T) (command, capabilities []string) {
	t.Helper()
	text := read(t, "kubernetes/base/daemonset.yaml")
	block := regexp.MustCompile(`(?m)^ +command:\n((?: +- .*\n)+)`).FindStringSubmatch(text)
	added := regexp.MustCompile(`(?m)^ +add: \[(.*)\]$`).FindStringSubmatch(text)
	if block == nil || added == nil {
		t.Fatal("the manifest has no command, or no capabilities")
	}
	for _, m := range regexp.MustCompile(`(?m)- (.*)$`).FindAllStringSubmatch(block[1], -1) {
		command = append(command, m[1])
	}
	return command, strings.Split(strings.ToLower(added[1]), ", ")
}

// In a container with a cgroup namespace of its own, the DaemonSet's command line starts prefetchd in the namespace of
// the node, where the groups of other pods are named as they are, and leaves it the capabilities that the unit of
// systemd has. Without that the groups of others are out of sight.
func TestDaemonSetCommand(t *testing.T) {
	testenv.NeedRoot(t)
	for _, tool := range []string{"unshare", "nsenter", "setpriv"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s here: apt-get install util-linux", tool)
		}
	}
	own, err := cgroup.Find(0)
	if err != nil {
		t.Fatal(err)
	}
	command, capabilities := readCommand(t)
	if len(command) < 4 || command[len(command)-1] != "prefetchd" || command[1] != "--target=1" {
		t.Fatalf("the command is %q, want one that enters a namespace of process 1 and starts prefetchd", command)
	}
	// This process stands for the node's first one, which a machine may hide from its root.
	command[1] = "--target=" + strconv.Itoa(os.Getpid())
	command[len(command)-1] = "cat"
	pod := []string{
		"unshare", "--cgroup", "--mount", "--", "setpriv", "--inh-caps=-all",
		"--bounding-set=-all,+" + strings.Join(capabilities, ",+"), "--",
	}
	// start runs a command in a group below this process's, whose namespace it is.
	start := func(command ...string) string {
		t.Helper()
		dir := fmt.Sprintf("%s/pod-%d", own.Dir(), os.Getpid())
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		defer func() {
			testenv.WaitFor(t, "the group to be empty", func() bool { return os.Remove(dir) == nil })
		}()
		script := `echo $$ > "$0/cgroup.procs" && exec "$@"`
		cmd := exec.Command("sh", append([]string{"-c", script, dir}, append(pod, command...)...)...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%q: %v\n%s", cmd.Args, err, out)
		}
		return string(out)
	}
	files := []string{fmt.Sprintf("/proc/%d/cgroup", os.Getpid()), "/proc/self/status"}
	group := ":" + own.Name() + "\n"
	out := start(append([]string{"cat"}, files...)...)
	if !strings.Contains(out, "/..") || strings.Contains(out, group) {
		t.Errorf("without the command the group of another process is\n%swant one that is out of sight", out)
	}
	out = start(append(command, files...)...)
	if strings.Contains(out, "/..") || !strings.Contains(out, group) {
		t.Errorf("the group of another process is\n%swant %s", out, own.Name())
	}
	// BPF, PERFMON, SYS_NICE, SYS_PTRACE, DAC_READ_SEARCH and FOWNER (linux/capability.h).
	for _, set := range []string{"CapPrm", "CapEff", "CapBnd"} {
		if want := fmt.Sprintf("%s:\t%016x\n", set, 1<<39|1<<38|1<<23|1<<19|1<<2|1<<3); !strings.Contains(out, want) {
			t.Errorf("the capabilities are in\n%swant %s", out, want)
		}
	}
	if !strings.Contains(out, "NoNewPrivs:\t1\n") {
		t.Errorf("privileges can be gained again:\n%s", out)
	}
}
