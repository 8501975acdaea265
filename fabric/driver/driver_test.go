// Package driver_test builds libtfmbs_device.so (C) and runs its tests, which are in C, against a device.
package driver_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"tensorcast/fabric"
	"tensorcast/fabric/device"
	"tensorcast/fabric/device/devicetest"
	"tensorcast/fabric/frametest"
	"tensorcast/fabric/trit"
	"tensorcast/internal/cc"
	"tensorcast/internal/testenv"
)

// flags are those of the compiler.
var flags = []string{"-g", "-Wall", "-Wextra", "-Werror", "-I../../include", "-pthread"}

// build compiles a program of the driver and its tests in C, with a sanitizer or none ("").
func build(t testing.TB, sanitizer string) string {
	t.Helper()
	source := ""
	for _, name := range []string{"tfmbs_device.c", "testdata/driver_test.c"} {
		path, err := filepath.Abs(name)
		if err != nil {
			t.Fatal(err)
		}
		source += "#include \"" + path + "\"\n"
	}
	// cc.Compile takes one source, which includes both.
	path := filepath.Join(t.TempDir(), "test")
	args := flags
	if sanitizer != "" {
		args = append(args[:len(args):len(args)], "-fsanitize="+sanitizer, "-O1") // which compiles twice as fast
	}
	err := cc.Compile(t.Context(), path, source, args...)
	switch {
	case errors.Is(err, cc.ErrNoCompiler):
		t.Skipf("the driver is not built: %v", err)
	case err != nil:
		t.Fatal(err)
	}
	if sanitizer != "" {
		// Some kernels lay out memory in ways that an old sanitizer does not know. Then a program that does
		// nothing fails as well.
		empty := filepath.Join(t.TempDir(), "empty")
		if err := cc.Compile(t.Context(), empty, "int main(void) { return 0; }", "-fsanitize="+sanitizer); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(empty).CombinedOutput(); err != nil {
			t.Skipf("-fsanitize=%s does not work here: %v: %s", sanitizer, err, out)
		}
	}
	return path
}

// start runs a device in this process, until the test ends or until stop. It returns the device's socket.
func start(t testing.TB) (socket string, stop func()) {
	t.Helper()
	r := devicetest.Start(t, device.Options{PoolBytes: 64 << 20})
	return r.Socket, r.Stop
}

// run runs a test of the program, which must say nothing on standard error.
func run(t testing.TB, program, socket string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "TFMBS_SOCKET="+socket, "TFMBS_DEVICE=/nowhere", "TFMBS_STAGING_BYTES=16777216")
	if args[0] == "evictions" {
		cmd.Env = append(cmd.Env, "TFMBS_POOL_BYTES=65536")
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil || errs.Len() > 0 {
		t.Errorf("%v: %v: %s", args, err, errs.Bytes())
	}
	return out.String()
}

// frame writes files with a frame, a vector, and their product as this process computes it.
func frame(t testing.TB) (paths []string) {
	t.Helper()
	const rows, cols = 70, 333
	m := &fabric.Matrix{Rows: rows, Cols: cols, Layout: trit.PT5Striped, Terms: make([]fabric.Term, 1)}
	n := m.Layout.RowBytes(cols)
	for p := range 2 {
		b := make([]byte, rows*n)
		row := make([]int8, cols)
		for r := range rows {
			for c := range row {
				row[c] = int8((r*(7+p)+c*c*(3+p)+r*c)%3 - 1)
			}
			m.Layout.Pack(b[r*n:(r+1)*n], row)
		}
		m.Terms[0].Planes = append(m.Terms[0].Planes, b)
	}
	half := make([]uint16, rows*((cols+63)/64))
	for i := range half {
		half[i] = 0x2c00 + uint16(i*37%1024)
	}
	m.Terms[0].Scales = fabric.Scales{Block: 64, Half: half}
	f := frametest.Encode(t, "a tensor", m)
	o, err := fabric.NewOperand(m)
	if err != nil {
		t.Fatal(err)
	}
	a, err := fabric.NewActivations(cols, 32)
	if err != nil {
		t.Fatal(err)
	}
	x, y := make([]float32, cols), make([]float32, rows)
	for i := range x {
		x[i] = float32(math.Sin(float64(i)))
	}
	a.Quantize(x)
	o.GEMV(y, a, &fabric.Scratch{})
	floats := func(v []float32) (b []byte) {
		for _, f := range v {
			b = binary.NativeEndian.AppendUint32(b, math.Float32bits(f))
		}
		return b
	}
	dir := t.TempDir()
	for name, b := range map[string][]byte{"1 frame": f, "2 x": floats(x), "3 y": floats(y)} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return []string{filepath.Join(dir, "1 frame"), filepath.Join(dir, "2 x"), filepath.Join(dir, "3 y")}
}

// TestDriver runs the tests in C, with and without sanitizers.
func TestDriver(t *testing.T) {
	for _, sanitizer := range []string{"", "address,undefined", "thread"} {
		t.Run("sanitizer="+sanitizer, func(t *testing.T) {
			program := build(t, sanitizer)
			for _, test := range []string{"basic", "evictions", "threads", "frames", "plan", "forked", "gone"} {
				t.Run(test, func(t *testing.T) {
					socket, stop := start(t)
					switch test {
					case "frames":
						run(t, program, socket, append([]string{test}, frame(t)...)...)
					case "gone":
						gone(t, program, socket, stop)
					default:
						run(t, program, socket, test)
					}
				})
			}
		})
	}
}

// begin starts a test of the program, and waits until the program says that it is connected.
func begin(t *testing.T, program, socket string, args, env []string) (cmd *exec.Cmd, in io.WriteCloser,
	errs *bytes.Buffer) {
	t.Helper()
	cmd, errs = exec.Command(program, args...), &bytes.Buffer{}
	cmd.Env = append(append(os.Environ(), "TFMBS_SOCKET="+socket, "TFMBS_DEVICE=/nowhere"), env...)
	cmd.Stderr = errs
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // if the test fails before it waits
	const ready = "ready\n"
	got := make([]byte, len(ready))
	if _, err := io.ReadFull(out, got); err != nil || string(got) != ready {
		t.Fatalf("%v does not begin: %q, %v: %s", args, got, err, errs.Bytes())
	}
	return cmd, in, errs
}

// gone runs the test in which the device ends while the program is connected.
func gone(t *testing.T, program, socket string, stop func()) {
	cmd, in, errs := begin(t, program, socket, []string{"gone"}, nil)
	stop()
	_ = in.Close()
	if err := cmd.Wait(); err != nil || errs.Len() > 0 {
		t.Errorf("%v: %s", err, errs.Bytes())
	}
}

// TestManual: the manual page has each function of the header, with its parameters, and no others.
func TestManual(t *testing.T) {
	header, err := os.ReadFile("../../include/tfmbs_host.h")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("tfmbs_host.3")
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]string{}
	prototype := regexp.MustCompile(`(?m)^[a-z].*?\b(\w+)\(([^;{}]*)\);`)
	for _, m := range prototype.FindAllStringSubmatch(strings.ReplaceAll(string(header), ",\n", ","), -1) {
		declared[m[1]] = strings.Join(strings.FieldsFunc(strings.TrimSpace(m[2]),
			func(r rune) bool { return r == ',' }), "|")
	}
	shown := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^\.Ft .*\n\.Fn (\w+) (.*)$`).FindAllStringSubmatch(string(page), -1) {
		shown[m[1]] = strings.Trim(strings.ReplaceAll(m[2], `" "`, "|"), `"`)
	}
	if len(declared) < 20 {
		t.Fatalf("the header declares %v, want at least 20 functions", declared)
	}
	spaces := regexp.MustCompile(`\s+`)
	for name, want := range declared {
		if want = strings.ReplaceAll(spaces.ReplaceAllString(want, " "), "| ", "|"); shown[name] != want {
			t.Errorf("%s: the page has %q, the header %q", name, shown[name], want)
		}
	}
	for name := range shown {
		if _, ok := declared[name]; !ok {
			t.Errorf("the page has %s, which the header does not have", name)
		}
	}
	if _, err := exec.LookPath("groff"); err != nil {
		t.Skip("groff is not installed: the page is not formatted")
	}
	if out, err := exec.Command("groff", "-mdoc", "-ww", "-Tutf8", "-z",
		"tfmbs_host.3").CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
}

var kills = flag.Int("kills", 30, "programs that TestKilled kills")

// TestKilled: programs that are killed at any time leave nothing behind in the device, and do not harm another program.
func TestKilled(t *testing.T) {
	program := build(t, "")
	r := devicetest.Start(t, device.Options{PoolBytes: 256 << 20})
	start := func(args ...string) (*exec.Cmd, io.WriteCloser, *bytes.Buffer) {
		return begin(t, program, r.Socket, args, []string{"TFMBS_STAGING_BYTES=16777216"})
	}
	held := func() (files, maps, routines int) {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		return len(list), bytes.Count(b, []byte("memfd:tfmbs")), runtime.NumGoroutine()
	}
	survivor, in, errs := start("steady")
	files, maps, routines := held()
	rng := rand.New(rand.NewPCG(1, uint64(*kills)))
	for i := range *kills {
		victim, _, said := start("endless", strconv.Itoa(i))
		time.Sleep(time.Duration(rng.IntN(10000)) * time.Microsecond)
		_ = victim.Process.Kill()
		if err := victim.Wait(); victim.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("program %d was not killed: %v: %s", i, err, said.Bytes())
		}
	}
	testenv.WaitFor(t, "the device to see that they ended", func() bool { return r.Device.Status().Clients == 1 })
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		f, m, n := held()
		if f <= files && m <= maps && n <= routines {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d open files, %d maps and %d goroutines, want %d, %d and %d", f, m, n, files, maps, routines)
		}
	}
	_ = in.Close()
	if err := survivor.Wait(); err != nil || errs.Len() > 0 {
		t.Errorf("the program that was not killed: %v: %s", err, errs.Bytes())
	}
	testenv.WaitFor(t, "the last one to be gone", func() bool { return r.Device.Status().Clients == 0 })
	s := r.Device.Status()
	if s.ClientsEver != uint64(*kills)+1 || s.Weights != 0 || s.PoolUsed != 0 || s.HostBytes != 0 ||
		s.PoolExtents != 1 {
		t.Errorf("left behind: %+v, want %d clients ever, and nothing else", s, *kills+1)
	}
}

// TestStartsDevice: if no device runs, the driver starts one, which ends when it has no client any more.
func TestStartsDevice(t *testing.T) {
	program := build(t, "")
	dir := devicetest.Dir(t)
	prefetchd := filepath.Join(dir, "prefetchd")
	if err := testenv.BuildAt(prefetchd, "tensorcast/cmd/prefetchd"); err != nil {
		t.Fatal(err)
	}
	// This device ends after a shorter time than the 60 s that the driver asks for.
	starter := filepath.Join(dir, "starter")
	script := "#!/bin/sh\nshift 3\nexec " + strconv.Quote(prefetchd) + " fabric --idle 300ms --pool 64MiB \"$@\"\n"
	if err := os.WriteFile(starter, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "sub", "s")
	cmd := exec.CommandContext(t.Context(), program, "basic")
	cmd.Env = append(os.Environ(), "TFMBS_SOCKET="+socket, "TFMBS_DEVICE="+starter)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%v: %s", err, out)
	}
	testenv.WaitFor(t, "the device to end", func() bool {
		_, err := device.Ask(t.Context(), socket)
		return errors.Is(err, device.ErrNotRunning)
	})
}

// BenchmarkEmpty is the round trip of an empty job from a program in C. The device sleeps before each.
func BenchmarkEmpty(b *testing.B) {
	program := build(b, "")
	socket, _ := start(b)
	for b.Loop() {
		us, err := strconv.ParseFloat(strings.TrimSpace(run(b, program, socket, "latency")), 64)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(us, "us-median")
	}
}
