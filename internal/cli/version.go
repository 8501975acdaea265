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

// Objects makes --version of root name the BPF objects in it, which are compiled apart from it: each with the first 12 digits of the SHA-256
// of its file.
func Objects(root *cobra.Command, objects map[string][]byte) {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		parts = append(parts, fmt.Sprintf("%s %.6x", name, sha256.Sum256(objects[name])))
	}
	if root.Annotations == nil {
		root.Annotations = map[string]string{}
	}
	root.Annotations[bpfObjects] = strings.Join(parts, ", ")
}

// revision and revisionTime (RFC 3339) are of the commit, for builds that Go cannot stamp itself, as in git's worktrees. The linker sets them:
// -X tensorcast/internal/cli.revision=...
var revision, revisionTime string

// Version is what --version prints: the release or revision that the command was built from, and the Go version.
func Version() string {
	info, ok := buildInfo()
	if !ok {
		return "unknown"
	}
	return versionOf(info)
}

// buildInfo returns what the build says of itself, with the revision.
func buildInfo() (*debug.BuildInfo, bool) {
	info, ok := debug.ReadBuildInfo()
	if ok && revision != "" && !slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "vcs.revision" }) {
		info.Settings = append(info.Settings, debug.BuildSetting{Key: "vcs.revision", Value: revision}, debug.BuildSetting{Key: "vcs.time", Value: revisionTime})
	}
	return info, ok
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
	return strings.Join(append(parts, fmt.Sprintf("%s %s/%s", info.GoVersion, settings["GOOS"], settings["GOARCH"])), ", ")
}
