package cli

// This file reports the version of the build.

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// bpfObjects is the annotation of a root command that names its BPF objects.
const bpfObjects = "bpf"

// AddBPFVersions adds the BPF objects in a command to the output of --version. They are compiled apart
// from the command. Each is named with the first 12 hexadecimal digits of the SHA-256 of its file.
func AddBPFVersions(root *cobra.Command, objects map[string][]byte) {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		parts = append(parts, fmt.Sprintf("%s %.6x", name, sha256.Sum256(objects[name])))
	}
	if root.Annotations == nil {
		root.Annotations = map[string]string{}
	}
	root.Annotations[bpfObjects] = strings.Join(parts, ", ")
}

// The linker sets these for packages, because Go stamps no builds of git's worktrees:
// -X tensorcast/internal/cli.revision=...
var (
	release                string // the version of the package, as in 0.1.0
	revision, revisionTime string // of the commit; the time is in the form of RFC 3339
)

// Version is the output of --version: the release or revision that the command was built from, and
// the Go version.
func Version() string {
	info, ok := buildInfo()
	if !ok {
		return "unknown"
	}
	return versionOf(info)
}

// buildInfo returns the build information of this program. The linker's version counts before Go's. If
// Go did not stamp a revision, it adds the linker's.
func buildInfo() (*debug.BuildInfo, bool) {
	info, ok := debug.ReadBuildInfo()
	if ok && release != "" {
		info.Main.Version = release
	}
	isRevision := func(s debug.BuildSetting) bool { return s.Key == "vcs.revision" }
	if ok && revision != "" && !slices.ContainsFunc(info.Settings, isRevision) {
		info.Settings = append(info.Settings,
			debug.BuildSetting{Key: "vcs.revision", Value: revision},
			debug.BuildSetting{Key: "vcs.time", Value: revisionTime})
	}
	return info, ok
}

// Commit returns the commit that this program was built from, in hexadecimal, and whether there were changes that were
// not committed. The commit is empty if the build does not know it, as with go run and in tests.
func Commit() (commit string, modified bool) {
	info, ok := buildInfo()
	if !ok {
		return "", false
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	return commit, modified
}

func versionOf(info *debug.BuildInfo) string {
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	parts := []string{info.Main.Version}
	if info.Main.Version == "" {
		parts[0] = "(devel)"
	}
	if revision := settings["vcs.revision"]; revision != "" {
		text := "revision " + revision
		if t := settings["vcs.time"]; t != "" {
			text += " of " + t
		}
		if settings["vcs.modified"] == "true" {
			text += " with changes"
		}
		parts = append(parts, text)
	}
	parts = append(parts, fmt.Sprintf("%s %s/%s", info.GoVersion, settings["GOOS"], settings["GOARCH"]))
	return strings.Join(parts, ", ")
}
