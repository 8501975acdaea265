package handover

// This file runs a device for one target.

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"tensorcast/fabric/device"
	"tensorcast/internal/sizes"
)

// Options say what a device holds, and for whom.
type Options struct {
	Program    []string            // the command that runs a device: `prefetchd fabric`
	Credential *syscall.Credential // the target's user; nil: this process's
	Model      string
	Profile    string
	Error      string // in decibels, see ParseForm
	Plan       Plan
	Stderr     io.Writer
}

// Device is a process that holds weights for one target. Its memory is charged to the cgroup of the process
// that starts it. If memory gets short all the same, the kernel ends it first (oom_score_adj): the target
// then computes from the file.
type Device struct {
	dir    string
	cmd    *exec.Cmd
	copied sync.WaitGroup
	decoys *decoys
}

// Start starts a device, waits until it serves, and tells it what to hold; the device reads that in the
// background. The caller must call Close.
func Start(o Options) (_ *Device, err error) {
	d := &Device{}
	if d.dir, err = os.MkdirTemp("", "tensorcast-fabric-"); err != nil {
		return nil, fmt.Errorf("make a directory for the device's socket: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	if d.decoys, err = startDecoys(decoyCount); err != nil {
		return nil, err
	}
	// The pool is larger than the plan, as planes that are exchanged for others are there twice for a
	// moment, and shrunk ones leave gaps. What is not used of it takes no memory.
	pool := o.Plan.Bytes + o.Plan.Bytes/2 + 64<<20
	args := append(o.Program[1:len(o.Program):len(o.Program)], "--socket", d.Socket(), "--hold", o.Model,
		"--profile", o.Profile,
		"--room", sizes.Format(o.Plan.Bytes), "--told", "--pool", sizes.Format(pool))
	if o.Error != "" {
		args = append(args, "--error", o.Error)
	}
	if o.Plan.Finer {
		args = append(args, "--finer")
	}
	cmd := exec.Command(o.Program[0], args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: o.Credential, Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if o.Credential != nil {
		if err := os.Chown(d.dir, int(o.Credential.Uid), int(o.Credential.Gid)); err != nil {
			return nil, fmt.Errorf("give the directory of the device's socket to its user: %w", err)
		}
	}
	// The heap is collected early, to leave memory to the target.
	cmd.Env = append(os.Environ(), "GOGC=25")
	out, err := cmd.StderrPipe()
	if err != nil {
		return nil, fmt.Errorf("start the device: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the device: %w", err)
	}
	d.cmd = cmd
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadString('\n')
		if strings.HasPrefix(line, "serving ") {
			break
		}
		_, _ = io.WriteString(o.Stderr, line)
		if err != nil {
			return nil, errors.New("the device did not start")
		}
	}
	d.copied.Go(func() { _, _ = io.Copy(o.Stderr, lines) }) // ends with the device
	return d, d.Wish(context.Background(), o.Plan.Units)
}

// Wish says what the device is to hold, by the indices of units. The device reads that in the background.
func (d *Device) Wish(ctx context.Context, units []int) error {
	return device.Wish(ctx, d.Socket(), units)
}

// Socket is the path of the device's socket.
func (d *Device) Socket() string { return filepath.Join(d.dir, "fabric.sock") }

// Environ returns what a target needs in its environment to find the device. ggml loads libggml-tfmbs.so,
// whose path is backend.
func (d *Device) Environ(backend string) []string {
	// The memory that is shared with the device needs to hold vectors only.
	return []string{
		"GGML_BACKEND_PATH=" + backend, "TFMBS_HANDOVER=1", "TFMBS_SOCKET=" + d.Socket(),
		"TFMBS_POOL_BYTES=4096", "TFMBS_STAGING_BYTES=" + strconv.Itoa(160<<20),
	}
}

// Status asks the device what it holds.
func (d *Device) Status(ctx context.Context) (device.Status, error) {
	return device.Ask(ctx, d.Socket())
}

// Close ends the device and removes its socket.
func (d *Device) Close() error {
	if d.cmd != nil {
		_ = d.cmd.Process.Signal(unix.SIGTERM)
		d.copied.Wait()
		_ = d.cmd.Wait() // that it was ended is no error
		d.cmd = nil
	}
	var err error
	if d.decoys != nil {
		err = d.decoys.close()
		d.decoys = nil
	}
	return errors.Join(err, os.RemoveAll(d.dir))
}
