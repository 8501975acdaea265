package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// exposure is the most that `systemd-analyze security` may find (0 is nothing, 100 is all): a process that does what prefetchd does has some.
const exposure = "40"

// An installed unit is one that systemd takes without a word, names the program where it was installed, and has few privileges.
func TestUnits(t *testing.T) {
	root := t.TempDir()
	mustInstall(t, fakes(t), root, "/opt/it")
	units, err := filepath.Glob(root + "/opt/it/lib/systemd/system/*.service")
	if err != nil || len(units) == 0 {
		t.Fatalf("no unit was installed: %v", err)
	}
	for _, unit := range units {
		data, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		if text := string(data); strings.Contains(text, "@BINDIR@") || !strings.Contains(text, "/opt/it/bin/prefetchd ") {
			t.Errorf("%s does not name the program:\n%s", unit, text)
		}
	}

	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("not checked by systemd: systemd-analyze is missing (Debian package systemd)")
	}
	for _, unit := range units {
		// A template is verified as an instance, beside the service that it belongs to. Its documentation is not in this machine's man.
		dir := t.TempDir()
		write(t, dir+"/server.service", "[Service]\nExecStart=/bin/true\n")
		data, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		instance := filepath.Join(dir, strings.Replace(filepath.Base(unit), "@.", "@server.", 1))
		text := regexp.MustCompile("(?m)^Documentation=.*\n").ReplaceAllString(string(data), "")
		write(t, instance, strings.ReplaceAll(text, "/opt/it/", root+"/opt/it/")) // where the program is
		if out, err := exec.Command(analyze, "verify", instance).CombinedOutput(); err != nil || strings.Contains(string(out), filepath.Base(instance)) {
			t.Errorf("%s: %v\n%s", filepath.Base(unit), err, out)
		}
		if out, err := exec.Command(analyze, "security", "--no-pager", "--offline=true", "--threshold="+exposure, instance).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", filepath.Base(unit), err, out)
		}
	}
}

// Both units run the same program: they leave it the same privileges.
func TestUnitsAlike(t *testing.T) {
	restrictions := func(name string) string {
		data, err := os.ReadFile("systemd/" + name)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, found := strings.Cut(string(data), "\nCapabilityBoundingSet=")
		rest, _, ended := strings.Cut(rest, "\n[Install]")
		if !found || !ended {
			t.Fatalf("%s has no restrictions", name)
		}
		return strings.TrimSpace(regexp.MustCompile("(?m)^(#.*)?\n").ReplaceAllString(rest, ""))
	}
	if one, all := restrictions("tensorcast-prefetchd@.service"), restrictions("tensorcast-prefetchd.service"); one != all {
		t.Errorf("beside one server:\n%s\nfor all:\n%s", one, all)
	}
}
