package testenv

// This file opens pages in a real browser, and acts in them as a reader does.

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// browserCommand returns a command that opens a file in a browser without a window, and the directory
// for all files that the browser makes. It skips the test where there is no browser.
func browserCommand(t testing.TB, flags ...string) (command []string, profile string) {
	t.Helper()
	profile, err := os.MkdirTemp("", "browser-test")
	if err != nil {
		t.Fatal(err)
	}
	// Its processes end a little after the first one.
	t.Cleanup(func() { WaitFor(t, "the browser to end", func() bool { return os.RemoveAll(profile) == nil }) })
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return append([]string{
				path, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
				"--user-data-dir=" + profile, "--enable-logging=stderr", "--window-size=1280,2400",
			}, flags...), profile
		}
	}
	t.Skip("no chromium here: apt-get install chromium")
	return nil, ""
}

// collector is a script that runs before the page's own. It collects errors and warnings.
const collector = `<script>
const wrong = [];
addEventListener("error", e => wrong.push("error: " + e.message));
addEventListener("unhandledrejection", e => wrong.push("rejected: " + e.reason));
addEventListener("securitypolicyviolation", e => wrong.push("policy: " + e.violatedDirective));
for (const name of ["error", "warn"]) console[name] = (...all) => wrong.push(name + ": " + all.join(" "));
</script>`

// runner is a script that runs the steps of a test, and writes their results to the browser's log.
const runner = `<script>
const $ = id => document.getElementById(id);
const drawn = () => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
const act = async (target, type, name, x, y, more) => {
  const r = target.getBoundingClientRect();
  const at = { bubbles: true, cancelable: true, clientX: r.left + x, clientY: r.top + y, pointerId: 1 };
  target.dispatchEvent(new type(name, Object.assign(at, more)));
  await drawn();
};
const pixel = (id, x, y) => {
  const c = $(id), k = c.width / c.clientWidth;
  return Array.from(c.getContext("2d").getImageData(x * k, y * k, 1, 1).data).join();
};
(async () => {
  const result = {};
  try { await (async () => { STEPS })(); } catch (e) { wrong.push("test: " + e.stack); }
  result.wrong = wrong;
  console.log("RESULT" + encodeURIComponent(JSON.stringify(result)) + "TLUSER");
})();
</script></body>`

// Browse opens a page, runs the steps of a test in it and returns the texts that the steps left in
// the object result. The steps are JavaScript in an async function, and may use $(id), drawn(),
// act() and pixel() above. Errors and warnings of the page or the browser fail the test. It skips
// the test where there is no browser.
func Browse(t testing.TB, page []byte, steps string, flags ...string) map[string]string {
	t.Helper()
	command, profile := browserCommand(t, flags...)
	b := bytes.Replace(page, []byte("<body>"), []byte("<body>"+collector), 1)
	at := bytes.LastIndex(b, []byte("</body>"))
	b = append(append(bytes.Clone(b[:at]), strings.Replace(runner, "STEPS", steps, 1)...), b[at+len("</body>"):]...)
	path := filepath.Join(t.TempDir(), "index.html")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], append(command[1:], "file://"+path)...)
	cmd.Env = append(os.Environ(), "TMPDIR="+profile) // a browser that is killed leaves a directory there
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) } // a browser has many processes
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var text string
	var log bytes.Buffer
	lines := bufio.NewScanner(stderr)
	lines.Buffer(nil, 1<<20)
	for text == "" && lines.Scan() {
		log.WriteString(lines.Text() + "\n")
		if _, rest, ok := strings.Cut(lines.Text(), "RESULT"); ok {
			text, _, _ = strings.Cut(rest, "TLUSER")
		}
	}
	cancel()
	_ = cmd.Wait()
	if text, err = url.PathUnescape(text); err != nil || text == "" {
		t.Fatalf("the steps did not come to their end: %v, %s", err, log.String())
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	if wrong := got["wrong"].([]any); len(wrong) > 0 {
		t.Errorf("the browser reports: %v", wrong)
	}
	texts := map[string]string{}
	for name, v := range got {
		if s, ok := v.(string); ok {
			texts[name] = s
		}
	}
	return texts
}
