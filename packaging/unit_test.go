package packaging_test

// This file tests the systemd units.

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// exposure is the highest accepted result of `systemd-analyze security`, from 0 (best) to 100.
// prefetchd needs some privileges.
const exposure = "40"

// systemd accepts an installed unit without a warning. The unit names the program where it was
// installed, and has few privileges.
func TestUnits(t *testing.T) {
	root := t.TempDir()
	mustInstall(t, writeFakes(t), root, "/opt/it")
	units, err := filepath.Glob(root + "/opt/it/lib/systemd/system/*.service")
	if err != nil || len(units) == 0 {
		t.Fatalf("no unit was installed: %v", err)
	}
	for _, unit := range units {
		data, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		if strings.Contains(text, "@BINDIR@") || !strings.Contains(text, "/opt/it/bin/prefetchd ") {
			t.Errorf("%s does not have the program's path /opt/it/bin/prefetchd:\n%s", unit, text)
		}
	}

	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("not checked by systemd: systemd-analyze is missing (Debian package systemd)")
	}
	for _, unit := range units {
		// A template is verified as an instance, together with the service to which it belongs. Its
		// manual page is not installed here, so the line Documentation is removed.
		dir := t.TempDir()
		write(t, dir+"/server.service", "[Service]\nExecStart=/bin/true\n")
		data, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		instance := filepath.Join(dir, strings.Replace(filepath.Base(unit), "@.", "@server.", 1))
		text := regexp.MustCompile("(?m)^Documentation=.*\n").ReplaceAllString(string(data), "")
		write(t, instance, strings.ReplaceAll(text, "/opt/it/", root+"/opt/it/")) // the real path of the program
		out, err := exec.Command(analyze, "verify", instance).CombinedOutput()
		if err != nil || strings.Contains(string(out), filepath.Base(instance)) {
			t.Errorf("%s: %v, want no warnings\n%s", filepath.Base(unit), err, out)
		}
		security := exec.Command(analyze,
			"security", "--no-pager", "--offline=true", "--threshold="+exposure, instance)
		if out, err := security.CombinedOutput(); err != nil {
			t.Errorf("%s: %v, want at most %s\n%s", filepath.Base(unit), err, exposure, out)
		}
	}
}

// Both units run the same program, so they give it the same privileges.
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
	one := restrictions("tensorcast-prefetchd@.service")
	if all := restrictions("tensorcast-prefetchd.service"); one != all {
		t.Errorf("the unit beside one server has\n%s\nwant the same as the unit for all:\n%s", one, all)
	}
}
