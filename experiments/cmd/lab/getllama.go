package main

// This file implements "lab getllama", which puts a llama.cpp and the driver llamarun into the cache.

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"tensorcast/experiments/llama"
	"tensorcast/internal/cli/progress"
)

func getllamaCommand() *cobra.Command {
	var link string
	cmd := &cobra.Command{
		Use:   "getllama",
		Short: "Install a prebuilt llama.cpp with the driver llamarun",
		Long: `Getllama installs a prebuilt llama.cpp. It fetches an npm package of one exact version, and checks its
integrity. It compiles the driver llamarun into the same directory, and prints the path of that directory.
llamarun stands in for llama-cli. What is in the cache already is not made again.

The environment may name another cache (TENSORCAST_CACHE) or a directory with your own llama.cpp
libraries (TENSORCAST_LLAMA).

Exit codes: 0 done; 1 failed; 2 wrong usage.`,
		Example: `  lab getllama --link .llama
  .llama/llamarun -m model.gguf -p "Once upon a time" -n 32`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, err := get(cmd, "getting llama.cpp", llama.Install)
			if err != nil {
				return err
			}
			return printGot(cmd, in.Dir, link)
		},
	}
	cmd.Flags().StringVar(&link, "link", "", "make `PATH` a symbolic link to that directory. An older link is replaced")
	return cmd
}

// get calls install, and says on a terminal that it is at work.
func get[T any](cmd *cobra.Command, what string, install func(context.Context) (T, error)) (T, error) {
	bar := progress.New(cmd.ErrOrStderr(), progress.Options{What: what})
	defer bar.Close()
	return install(cmd.Context())
}

// printGot prints the path of what was got. If link is not empty, it makes that a symbolic link to it before.
func printGot(cmd *cobra.Command, path, link string) error {
	if link != "" {
		if err := symlink(path, link); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), path)
	return err
}

// symlink makes path a symbolic link to target. An existing link is replaced atomically; anything else
// at path is an error.
func symlink(target, path string) error {
	info, err := os.Lstat(path)
	switch {
	case err == nil && info.Mode().Type() != fs.ModeSymlink:
		return fmt.Errorf("link %s: it exists and is not a symbolic link", path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("link: %w", err)
	}
	tmp := filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%d.tmp", filepath.Base(path), os.Getpid()))
	if err := os.Symlink(target, tmp); err != nil {
		return fmt.Errorf("link: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("link: %w", errors.Join(err, os.Remove(tmp)))
	}
	return nil
}
