package main

// This file owns replacing an output file: it is there whole or not at all.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"tensorcast/gguf"
)

// writeOutput writes data to the file at path, made from the models that the inputs name. A regular file is replaced in one step and
// keeps its mode, through symbolic links; anything else (a device, a pipe) is written to as it is.
func writeOutput(path string, inputs []string, models []*gguf.Model, data []byte) error {
	target, mode := path, fs.FileMode(0)
	info, err := os.Stat(path)
	switch {
	case err == nil && !info.Mode().IsRegular():
		if err := os.WriteFile(path, data, 0); err != nil {
			return fmt.Errorf("write the table: %w", err)
		}
		return nil
	case err == nil:
		for _, m := range models {
			for _, f := range m.Files {
				inputs = append(inputs, f.Path)
			}
		}
		for _, input := range inputs {
			if in, err := os.Stat(input); err == nil && os.SameFile(in, info) {
				return fmt.Errorf("write the table: %s is the model itself", path)
			}
		}
		mode = info.Mode().Perm()
		if target, err = filepath.EvalSymlinks(path); err != nil {
			return fmt.Errorf("write the table: %w", err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("write the table: %w", err)
	}

	// The rest takes microseconds: a signal waits for it rather than leaving a temporary file behind.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	if err := replaceFile(target, mode, data); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}

// replaceFile puts data in the place of the file at path. A mode of 0 leaves the new file's to the umask.
func replaceFile(path string, mode fs.FileMode, data []byte) (err error) {
	name := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%d.tmp", filepath.Base(path), os.Getpid()))
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(name)
		}
	}()
	_, err = file.Write(data)
	if err == nil && mode != 0 {
		err = file.Chmod(mode)
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	return os.Rename(name, path)
}
