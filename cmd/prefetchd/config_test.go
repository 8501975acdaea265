package main

// This file tests the configuration file, the environment, prefetchd config, and that --auto reads the file anew.

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"tensorcast/internal/cgroup"
	"tensorcast/internal/cli"
	"tensorcast/internal/config"
	"tensorcast/internal/testenv"
	"tensorcast/prefetch/monitor"
)

// writeConfig writes a configuration file that nobody else can write to.
func writeConfig(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o644); err != nil { // whatever the umask is
		t.Fatal(err)
	}
}

// runMain runs prefetchd in this process.
func runMain(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = cli.Run(t.Context(), command(func() {}), args, &out, &errs)
	return code, out.String(), errs.String()
}

// What is in force comes from flags, then from the environment, then from the file.
func TestConfigCommand(t *testing.T) {
	host, err := cgroup.Host()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.yaml")
	writeConfig(t, path, "budget: 50%\nname: [a, b]\nkeep-warm: 30m\nlog: json\nbudget-of: {ollama.service: 8GiB}\n")
	t.Setenv("TENSORCAST_PREFETCHD_MOST", "3")
	t.Setenv("TENSORCAST_PREFETCHD_LOG", "text")
	t.Setenv("TENSORCAST_PREFETCHD_NEVER", "c,d")
	t.Setenv("TENSORCAST_PREFETCHD_PORT", "tcp://10.0.0.1:80") // as Kubernetes does for a service of that name
	code, stdout, stderr := runMain(t, "config", "--config", path, "--most", "5", "--json")
	var all []settingJSON
	if err := json.Unmarshal([]byte(stdout), &all); err != nil || code != 0 || len(all) != len(settings()) {
		t.Fatalf("exit %d, %v, %s%s", code, err, stdout, stderr)
	}
	want := map[string]string{
		"most":      `5 {flag  0}`,
		"log":       `text {environment TENSORCAST_PREFETCHD_LOG 0}`,
		"never":     `[c d] {environment TENSORCAST_PREFETCHD_NEVER 0}`,
		"budget":    `50% {file ` + path + ` 1}`,
		"name":      `[a b] {file ` + path + ` 2}`,
		"keep-warm": `30m0s {file ` + path + ` 3}`,
		"budget-of": `[ollama.service=8.0 GiB] {file ` + path + ` 5}`,
		"leave":     `<nil> {default  0}`,
		"readahead": `auto {default  0}`,
		"lock":      `false {default  0}`,
	}
	for _, s := range all {
		text := strings.TrimSpace(strings.Join([]string{sprint(s.Value), sprint(s.Origin)}, " "))
		if want[s.Key] != "" && text != want[s.Key] {
			t.Errorf("%s is %s, want %s", s.Key, text, want[s.Key])
		}
	}
	code, stdout, stderr = runMain(t, "config", "--config", path)
	for _, line := range []string{
		`(?m)^most +3 +environment TENSORCAST_PREFETCHD_MOST$`, `(?m)^budget +50% \([0-9.]+ GiB\) +` + path + `:1$`,
		`(?m)^name +a, b +` + path + `:2$`, `(?m)^leave +- +default$`,
	} {
		if code != 0 || !regexp.MustCompile(line).MatchString(stdout) {
			t.Errorf("exit %d, no line %s in\n%s%s", code, line, stdout, stderr)
		}
	}
	f, o := newFlags()
	if err := f.Set(configFlag, path); err != nil {
		t.Fatal(err)
	}
	if _, err := o.configure(f, o.uses); err != nil || o.Budget < host.Total*49/100 || o.Budget > host.Total*51/100 {
		t.Errorf("half of %d bytes is %d, %v", host.Total, o.Budget, err)
	}
	if !o.KeepWarm || o.warmFor != 30*time.Minute || len(o.names) > 0 || o.log != logText {
		t.Errorf("for one process: %+v; want to keep warm for 30 minutes, and no names", o)
	}

	for args, want := range map[string]string{
		"--config /does/not/exist":          "no such file",
		"--config " + path + " --budget 12": "write the unit",
	} {
		if code, stdout, stderr := runMain(t, append([]string{"config"}, strings.Fields(args)...)...); code == 0 ||
			!strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d, %s%s", args, code, stdout, stderr)
		}
	}
	if code, stdout, _ := runMain(t, "config", "--config="); code != 0 || strings.Contains(stdout, path) {
		t.Errorf("without a file: exit %d, %s", code, stdout)
	}
	t.Setenv("TENSORCAST_PREFETCHD_CONFIG", path)
	if code, stdout, _ := runMain(t, "config"); code != 0 || !strings.Contains(stdout, path) {
		t.Errorf("with a file that the environment names: exit %d, %s", code, stdout)
	}
	t.Setenv("TENSORCAST_PREFETCHD_MOST", "many")
	if code, _, stderr := runMain(t, "config"); code != cli.Failure ||
		stderr != "prefetchd config: TENSORCAST_PREFETCHD_MOST: most \"many\": want a whole number\n" {
		t.Errorf("with a wrong variable: exit %d, %s", code, stderr)
	}
}

func sprint(v any) string {
	switch v := v.(type) {
	case config.Origin:
		return "{" + string(v.Source) + " " + v.Where + " " + strconv.Itoa(v.Line) + "}"
	case []any:
		var words []string
		for _, one := range v {
			words = append(words, sprint(one))
		}
		return "[" + strings.Join(words, " ") + "]"
	case string:
		return v
	}
	return "<nil>"
}

// A file is checked before it is used. Each thing that is wrong is a line that says what to do.
func TestCheckConfig(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.yaml")
	for text, want := range map[string]string{
		"budget: 12GiB\nnever: x\n":       "is right: it has 2 of 15 settings\n",
		"":                                "is right: it has 0 of 15 settings\n",
		"# x\nbugdet: 12GiB":              `:2: unknown key "bugdet": did you mean "budget"?`,
		"budget: 12":                      `:1: budget "12": that is 12 bytes: write the unit, as in 12MiB or 12GiB`,
		"readahead: much":                 `:1: readahead "much": want auto, leave, fd or inject`,
		"keep-warm: soon":                 `:1: keep-warm "soon": want true, false or a time such as 30m`,
		"verbose: yes":                    `:1: verbose "yes": want true or false`,
		"most: 0":                         `: --most is 0, want 1 or more`,
		"budget-of: {x: 12}":              `:1: budget-of "x=12": that is 12 bytes`,
		"name: [a]\nname: [b]":            `:2: "name" is in line 1 already`,
		"budget: x\nleave: y\nbudget-of:": `budget-of has no value`,
	} {
		writeConfig(t, path, text)
		code, stdout, stderr := runMain(t, "config", "--check", path)
		if strings.HasPrefix(want, "is right") {
			if code != 0 || stdout != path+" "+want || stderr != "" {
				t.Errorf("%q: exit %d, %s%s; want %s", text, code, stdout, stderr, want)
			}
		} else if code != cli.Failure || !strings.Contains(stderr, path+want) && !strings.Contains(stderr, want) {
			t.Errorf("%q: exit %d, %s%s; want %s", text, code, stdout, stderr, want)
		}
	}
	writeConfig(t, path, "budget: 1GB")
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr := runMain(t, "config", "--check", path); code != cli.Failure ||
		!strings.Contains(stderr, "chmod go-w") {
		t.Errorf("a file that anybody can write to: exit %d, %s", code, stderr)
	}
	// With such a file nothing begins.
	if code, _, stderr := runMain(t, "--config", path, "--pid", "1"); code != cli.Failure ||
		!strings.Contains(stderr, "chmod go-w") {
		t.Errorf("with a file that anybody can write to: exit %d, %s", code, stderr)
	}
	if code, _, stderr := runMain(t, "config", "--check="); code != cli.BadUsage {
		t.Errorf("no file: exit %d, %s", code, stderr)
	}
	if code, _, stderr := runMain(t, "config", path); code != cli.BadUsage ||
		!strings.Contains(stderr, "--check FILE") {
		t.Errorf("an argument: exit %d, %s", code, stderr)
	}
}

// Each setting is a flag of the same kind. The file that is installed has all of them, in comments, and is right both
// as it is and without the comments.
func TestInstalledConfig(t *testing.T) {
	f, _ := newFlags()
	for _, s := range settings() {
		flag := f.Lookup(s.name)
		if flag == nil {
			t.Fatalf("there is no flag --%s", s.name)
		}
		if _, isList := flag.Value.(pflag.SliceValue); isList != (s.kind != config.Scalar) {
			t.Errorf("--%s takes several values: %v; its setting has kind %v", s.name, isList, s.kind)
		}
	}
	data, err := os.ReadFile("../../packaging/prefetchd.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if all, err := config.Parse("packaging", data, allKeys()); err != nil || len(all) != 0 {
		t.Errorf("the file sets %v, %v; want nothing", all, err)
	}
	// A comment without a space behind the # is a setting.
	without := regexp.MustCompile(`(?m)^#(\S| {2,}\S)`).ReplaceAll(data, []byte("$1"))
	path := filepath.Join(t.TempDir(), "x.yaml")
	writeConfig(t, path, string(without))
	if code, stdout, stderr := runMain(t, "config", "--check", path); code != 0 ||
		!strings.Contains(stdout, "it has 15 of 15 settings") {
		t.Errorf("without the comments: exit %d, %s%s, in\n%s", code, stdout, stderr, without)
	}
}

// --auto reads the file anew at SIGHUP: its log says what has changed, and those who may not be helped any more are
// not. With a wrong file all stays as it is.
func TestReload(t *testing.T) {
	testenv.NeedQuiet(t)
	const name = "reload-target"
	dir := t.TempDir()
	run, path := filepath.Join(dir, "run"), filepath.Join(dir, "x.yaml")
	writeConfig(t, path, "name: "+name+"\nbudget: 600MB\n")
	written, err := os.Create(filepath.Join(dir, "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer written.Close()
	said := func() string {
		text, err := os.ReadFile(written.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	// Whoever runs the test may ignore SIGHUP (nohup), which its children inherit.
	all := exec.Command("env", "--default-signal=HUP", prefetchd, "--auto", "--config", path, "--run-dir", run)
	all.Stderr = written
	all.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // without a terminal, as a service
	if err := all.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = all.Process.Kill(); _ = all.Wait() })
	target := startNamed(t, name).Process.Pid
	isHelped := func() bool {
		reports, err := monitor.List(t.Context(), run)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range reports {
			if r.Target == target {
				return true
			}
		}
		return false
	}
	testenv.WaitFor(t, "the target to be helped", isHelped)
	reload := func(text, want string) {
		t.Helper()
		writeConfig(t, path, text)
		if err := all.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		testenv.WaitFor(t, "the log to say "+want, func() bool { return strings.Contains(said(), want) })
	}
	reload("name: "+name+"\nbudget: 600MB\n", "nothing has changed")
	reload("name: "+name+"\nbudgt: 1GB\n", `unknown key`)
	// Its line comes after that of the budget.
	reload("name: "+name+"\nbudget: 300MB\nkeep-warm: true\n", "setting=keep-warm before=false now=true")
	if want := `msg="a setting has changed" setting=budget before="600 MB" now="300 MB" from=` + path +
		`:2 effect="at once"`; !strings.Contains(said(), want) {
		t.Errorf("the log lacks %s:\n%s", want, said())
	}
	if !isHelped() {
		t.Error("the target is not helped any more after changes that do not say so")
	}
	reload("name: "+name+"\nnever: "+name+"\n", "this process is not to be helped any more")
	testenv.WaitFor(t, "the help to end", func() bool { return !isHelped() })
	reload("name: "+name+"\n", `setting=never before=`+name)
	testenv.WaitFor(t, "the target to be helped again", isHelped)
	if err := all.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := all.Wait(); err != nil {
		t.Errorf("%v:\n%s", err, said())
	}
}

// Which models, programs and units may have how much holds for running targets, too, and is told as their budget.
func TestBudgetOf(t *testing.T) {
	t.Parallel()
	testenv.NeedRoot(t)
	const budget = 60 << 20
	r := newRig(t, 2, 40)
	r.options.Pause = 50 // so that it can be helped, however busy the machine is
	r.start()
	h := r.help("--budget", "1GB", "--budget-of", filepath.Base(r.options.Model)+"=60MiB",
		"--budget-of", "nobody-has-this-name=1MB")
	r.finish()
	if s := h.summary(t); s.Pinned > budget || s.Pinned < budget/2 || s.Level != "--budget" {
		t.Errorf("%d bytes were held, bounded by %s; want at most %d, bounded by --budget", s.Pinned, s.Level, budget)
	}
}
