// Package kubernetes_test checks the manifests: what Kustomize makes of them is what Kubernetes' own types have, and
// fits together.
package kubernetes_test

// This file builds the base and the overlays as `kubectl apply -k` does, and decodes the result strictly.

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// decoder returns what decodes manifests, and fails for a field that a type does not have, or has twice.
func decoder(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, networkingv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}

// manifests are the objects of a directory.
type manifests struct {
	namespace *corev1.Namespace
	daemons   *appsv1.DaemonSet
	policy    *networkingv1.NetworkPolicy
}

// build runs Kustomize in a directory, and decodes each object strictly. Each kind is there once.
func build(t *testing.T, dir string) (m manifests) {
	t.Helper()
	objects, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatalf("build %s: %v", dir, err)
	}
	if n := len(objects.Resources()); n != 3 {
		t.Errorf("%s has %d objects, want 3", dir, n)
	}
	for _, o := range objects.Resources() {
		text, err := o.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		decoded, _, err := decoder(t).Decode(text, nil, nil)
		if err != nil {
			t.Fatalf("%s: %s is not what Kubernetes' types have: %v", dir, o.CurId(), err)
		}
		switch d := decoded.(type) {
		case *corev1.Namespace:
			m.namespace = d
		case *appsv1.DaemonSet:
			m.daemons = d
		case *networkingv1.NetworkPolicy:
			m.policy = d
		default:
			t.Errorf("%s has a %T, want none", dir, d)
		}
	}
	if m.namespace == nil || m.daemons == nil || m.policy == nil {
		t.Fatalf("%s lacks a namespace, a DaemonSet or a policy", dir)
	}
	return m
}

// A manifest with a field that Kubernetes does not know is refused: the decoder of these tests is strict.
func TestStrict(t *testing.T) {
	text, err := os.ReadFile("base/daemonset.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := decoder(t).Decode(text, nil, nil); err != nil {
		t.Fatal(err)
	}
	for _, wrong := range [][2]string{
		{"hostPID: true", "hostPid: true"},
		{"readOnlyRootFilesystem: true", "readOnlyRootFileSystem: true"},
		{"memory: 512Mi", "memory: much"},
		{"apps/v1", "apps/v2"},
	} {
		changed := bytes.Replace(text, []byte(wrong[0]), []byte(wrong[1]), 1)
		if _, _, err := decoder(t).Decode(changed, nil, nil); err == nil {
			t.Errorf("%s was accepted, want an error", wrong[1])
		}
	}
}

// What is made of the base and of each overlay fits together.
func TestManifests(t *testing.T) {
	dirs, err := filepath.Glob("overlays/*")
	if err != nil || len(dirs) == 0 {
		t.Fatalf("overlays: %q, %v; want at least one", dirs, err)
	}
	for _, dir := range append(dirs, "base") {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m := build(t, dir)
			if d, p := m.daemons.Namespace, m.policy.Namespace; d != m.namespace.Name || p != m.namespace.Name {
				t.Errorf("namespaces %q and %q, want %s", d, p, m.namespace.Name)
			}
			if level := m.namespace.Labels["pod-security.kubernetes.io/enforce"]; level != "privileged" {
				t.Errorf("the namespace admits %q pods, want privileged ones", level)
			}
			pod := m.daemons.Spec.Template
			for whose, selector := range map[string]map[string]string{
				"the DaemonSet": m.daemons.Spec.Selector.MatchLabels,
				"the policy":    m.policy.Spec.PodSelector.MatchLabels,
			} {
				if !labels.SelectorFromSet(selector).Matches(labels.Set(pod.Labels)) {
					t.Errorf("%s selects %v, which the pods' labels %v are not", whose, selector, pod.Labels)
				}
			}
			if pod.Spec.NodeSelector["tensorcast/prefetchd"] != "enabled" {
				t.Errorf("nodes are selected by %v, want the label that a person sets", pod.Spec.NodeSelector)
			}
			if !pod.Spec.HostPID {
				t.Error("the pod does not see the node's processes")
			}
			checkVolumes(t, &pod.Spec)
			containers := map[string]*corev1.Container{}
			for i := range pod.Spec.Containers {
				c := &pod.Spec.Containers[i]
				containers[c.Name] = c
				if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() {
					t.Errorf("%s has no limit of memory, or no request of a processor", c.Name)
				}
			}
			if len(containers) != 2 || containers["prefetchd"] == nil || containers["exporter"] == nil {
				t.Fatalf("containers %v, want prefetchd and exporter", containers)
			}
			checkPrivileges(t, containers["prefetchd"], containers["exporter"])
			checkPort(t, &m, containers["exporter"])
		})
	}
}

// checkVolumes checks that each mount has its volume, and each volume is mounted.
func checkVolumes(t *testing.T, pod *corev1.PodSpec) {
	t.Helper()
	mounted := map[string]bool{}
	for _, c := range pod.Containers {
		for _, m := range c.VolumeMounts {
			mounted[m.Name] = true
		}
	}
	for _, v := range pod.Volumes {
		if !mounted[v.Name] {
			t.Errorf("the volume %s is not mounted", v.Name)
		}
		delete(mounted, v.Name)
	}
	if len(mounted) > 0 {
		t.Errorf("mounts without a volume: %v", mounted)
	}
}

var capabilitySet = regexp.MustCompile(`(?m)^CapabilityBoundingSet=(.*)$`)

// checkPrivileges checks that prefetchd has the capabilities that systemd gives it, and the exporter none. Those that
// start prefetchd in the node's namespace are given up again.
func checkPrivileges(t *testing.T, prefetchd, exporter *corev1.Container) {
	t.Helper()
	unit, err := os.ReadFile("../systemd/tensorcast-prefetchd.service")
	if err != nil {
		t.Fatal(err)
	}
	line := capabilitySet.FindSubmatch(unit)
	if line == nil {
		t.Fatal("the unit has no capabilities")
	}
	var want []string
	for name := range strings.FieldsSeq(string(line[1])) {
		want = append(want, strings.TrimPrefix(name, "CAP_"))
	}
	kept := "--bounding-set=-all"
	for _, name := range want {
		kept += ",+" + strings.ToLower(name)
	}
	if !slices.Contains(prefetchd.Command, kept) {
		t.Errorf("prefetchd is started by %q, want %s, as the unit of systemd has it", prefetchd.Command, kept)
	}
	for _, c := range []struct {
		*corev1.Container
		want []string
	}{{prefetchd, append(want, "SYS_ADMIN", "SETPCAP")}, {exporter, nil}} {
		s := c.SecurityContext
		if s == nil || s.Capabilities == nil || s.Privileged != nil {
			t.Fatalf("%s has no list of capabilities, or is privileged", c.Name)
		}
		var added []string
		for _, name := range s.Capabilities.Add {
			added = append(added, string(name))
		}
		if !slices.Equal(added, c.want) || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) {
			t.Errorf("%s has %q and drops %q, want %q and all others dropped",
				c.Name, added, s.Capabilities.Drop, c.want)
		}
	}
}

// checkPort checks that the exporter listens where Prometheus is told to look, and where the policy lets it.
func checkPort(t *testing.T, m *manifests, exporter *corev1.Container) {
	t.Helper()
	if len(exporter.Ports) != 1 {
		t.Fatalf("the exporter has ports %v, want one", exporter.Ports)
	}
	port := m.daemons.Spec.Template.Annotations["prometheus.io/port"]
	if !slices.Contains(exporter.Args, "--listen=:"+port) || exporter.Ports[0].ContainerPort != 9977 || port != "9977" {
		t.Errorf("the exporter is started with %q, has port %d, and is announced at %s; want 9977 each",
			exporter.Args, exporter.Ports[0].ContainerPort, port)
	}
	if in := m.policy.Spec.Ingress; len(in) != 1 || len(in[0].Ports) != 1 ||
		in[0].Ports[0].Port.String() != exporter.Ports[0].Name || len(in[0].From) == 0 {
		t.Errorf("the policy lets in %+v, want somebody to the port %s", in, exporter.Ports[0].Name)
	}
}
