package handover

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"tensorcast/fabric/device"
	"tensorcast/gguf"
)

const mib = 1 << 20

// dense is a model of n matrices of a type, each of rows million weights.
func dense(n, rows int, of gguf.Type) (units []Unit, bytes int64) {
	for i := range n {
		matrix := device.Extent{Type: of, Rows: rows << 10, Cols: 1024}
		u := Unit{device.Tensor{Name: fmt.Sprint(i), Matrices: []device.Extent{matrix}}, i, -1, 1}
		units, bytes = append(units, u), bytes+u.fileBytes()
	}
	return units, bytes
}

// mixed is a mixture with so many experts in each of 4 layers, of which a token uses an eighth: 1224 MiB of
// experts, and 17 that every token uses.
func mixed(experts int) (units []Unit, bytes int64) {
	units, bytes = dense(16, 1, gguf.Q8_0)
	for layer := range 4 {
		for e := range experts {
			matrix := device.Extent{Type: gguf.Q8_0, Rows: (1 << 16) / experts, Cols: 4608}
			u := Unit{device.Tensor{Name: "e", Matrices: []device.Extent{matrix}}, layer, e, 0.125}
			units, bytes = append(units, u), bytes+u.fileBytes()
		}
	}
	return units, bytes
}

func form(t *testing.T, profile, decibels string) device.Form {
	t.Helper()
	f, err := ParseForm(profile, decibels)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestMake: the device takes as much as there is, as little as is enough, or nothing.
func TestMake(t *testing.T) {
	units, bytes := dense(64, 16, gguf.Q8_0) // 1088 MiB
	fast, balanced, exact := form(t, "fast", ""), form(t, "", "23.5dB"), form(t, "accurate", "")
	for _, test := range []struct {
		name        string
		form        device.Form
		room        int64
		least, most int64
	}{
		{"fits", fast, 1088 * mib, 0, 0},
		{"larger than the file's blocks", exact, 600 * mib, 0, 0},
		{"all that there is", fast, 300 * mib, 160 * mib, 160 * mib},
		{"the rest fits", fast, 1000 * mib, 90 * mib, 230 * mib},
		{"some less is read", balanced, 600 * mib, 440 * mib, 460 * mib},
		{"hardly less is read", balanced, 300 * mib, 0, 0},
		{"no room", fast, 100 * mib, 0, 0},
		{"less than none", fast, -mib, 0, 0},
	} {
		p := NewPlan(units, test.form, Target{Model: bytes, Room: test.room, LeftOver: 140 * mib, Disk: 2.2e9, CPUs: 2})
		if p.Bytes < test.least || p.Bytes > test.most {
			t.Errorf("%s: %d MiB, want %d to %d; a token %.3f s, alone %.3f s", test.name, p.Bytes/mib,
				test.least/mib, test.most/mib, p.Token, p.Alone)
		}
	}
}

// TestMakeMixture: experts that are used alike are held if that pays; many of them only where all fits, or
// where their use is known: then those that are used most.
func TestMakeMixture(t *testing.T) {
	fast, balanced := form(t, "fast", ""), form(t, "balanced", "")
	few, bytes := mixed(16)
	at := Target{Model: bytes, Room: 559 * mib, LeftOver: 144 * mib, Disk: 3e9, CPUs: 2}
	isExpert := func(i int) bool { return few[i].Expert >= 0 }
	if p := NewPlan(few, fast, at); p.Bytes == 0 || !slices.ContainsFunc(p.Units, isExpert) {
		t.Errorf("fast: plan %+v, want experts among its units", p)
	}
	if p := NewPlan(few, balanced, at); p.Bytes != 0 {
		t.Errorf("balanced: plan %+v, want none", p)
	}
	many, bytes := mixed(128)
	at.Model = bytes
	p := NewPlan(many, fast, at)
	if p.Bytes != 0 {
		t.Errorf("128 experts, of which not all fit: plan %+v, want none", p)
	}
	at.Room = 1000 * mib
	if p := NewPlan(many, fast, at); p.Bytes == 0 {
		t.Error("128 experts, all of which fit: no plan, want one")
	}
}

// TestMakeTypes: of a file with several types, those are held first of which a byte of planes stands for most.
func TestMakeTypes(t *testing.T) {
	units, bytes := dense(32, 16, gguf.Q4_K)
	more, bytes6 := dense(32, 16, gguf.Q6_K)
	units = append(units, more...)
	at := Target{Model: bytes + bytes6, Room: (bytes + bytes6) * 6 / 10, LeftOver: 64 * mib, Disk: 1e9, CPUs: 2}
	p := NewPlan(units, form(t, "fast", ""), at)
	n := map[gguf.Type]int{}
	for _, i := range p.Units {
		n[units[i].Matrices[0].Type]++
	}
	if p.Bytes == 0 || n[gguf.Q6_K] != 32 || n[gguf.Q4_K] == 32 && p.Rest > 0 {
		t.Errorf("%v of 32 each are held: %d MiB; a token %.3f s, alone %.3f s", n, p.Bytes/mib, p.Token, p.Alone)
	}
}

// TestMakeFiner: where all fits with the planes that the bound needs, third planes are planned as far as
// there is room for them; and what is planned fits.
func TestMakeFiner(t *testing.T) {
	units, bytes := dense(64, 16, gguf.Q8_0)
	fast := form(t, "fast", "")
	fast.Finer = true
	if !fast.MayBeFiner(2) {
		t.Skip("no third planes on this processor")
	}
	e := &units[0].Matrices[0]
	two, three := 64*int64(fast.Bytes(e, 2)), 64*int64(fast.Bytes(e, 3))
	for _, test := range []struct {
		room  int64
		finer bool
		whole bool // all is held
	}{{1000 * mib, true, false}, {860 * mib, true, false}, {620 * mib, true, true}, {540 * mib, false, false},
		{300 * mib, false, false}} {
		p := NewPlan(units, fast, Target{Model: bytes, Room: test.room, LeftOver: 140 * mib, Disk: 2e9, CPUs: 2})
		left := test.room - 140*mib - p.Bytes - p.Rest // beside planes and what is not held
		if p.Finer != test.finer || (p.Rest == 0) != test.whole || p.Finer && (left < 0 || left > 24*mib) ||
			p.Bytes > test.room-140*mib || p.Least > p.Bytes || p.Finer && p.Least >= p.Bytes {
			t.Errorf("%d MiB: %+v, %d MiB are left; two planes take %d MiB, three %d", test.room/mib, p,
				left/mib, two/mib, three/mib)
		}
	}
	if p := NewPlan(units, fast, Target{Model: bytes, Room: 1100 * mib, LeftOver: 140 * mib}); p.Bytes != 0 {
		t.Errorf("a model that fits: plan %+v, want none", p)
	}
}

// TestMakeShort: where all fits with planes that the bound needs, some of them may go while memory is
// short; where it does not, the device decides which go first.
func TestMakeShort(t *testing.T) {
	balanced := form(t, "balanced", "")
	if balanced.Short != 15 {
		t.Fatalf("Short = %v, want 15", balanced.Short)
	}
	if !balanced.MayBeCoarser(3) {
		t.Skip("needs AVX2 and assembly: only planes that are multiplied as bands come and go one by one")
	}
	if given := form(t, "balanced", "20dB"); given.Short != 0 {
		t.Errorf("Short of a given error = %v, want 0", given.Short)
	}
	balanced.Finer = true
	units, bytes := dense(64, 16, gguf.Q8_0)
	at := Target{Model: bytes, Room: 950 * mib, LeftOver: 140 * mib, Disk: 2e9, CPUs: 2}
	p := NewPlan(units, balanced, at)
	if !p.Finer || p.Least <= p.Bytes*6/10 || p.Least >= p.Bytes*3/4 || p.Rest <= 0 ||
		p.Rest > 950*mib-140*mib-p.Bytes+mib {
		t.Errorf("where it fits: %+v, want planes that may go while memory is short", p)
	}
	at.Room = 500 * mib
	if p := NewPlan(units, balanced, at); p.Finer || p.Least != p.Bytes || p.Bytes == 0 {
		t.Errorf("where it does not fit: %+v, want no such planes", p)
	}
}

// TestParseForm: an error in decibels comes before a profile's.
func TestParseForm(t *testing.T) {
	if f, err := ParseForm("fast", "20dB"); err != nil || math.Abs(f.Bound-20) > 1e-9 {
		t.Errorf("form %+v, error %v; want a bound of 20", f, err)
	}
	for _, text := range []string{"20", "dB", "-3dB", "0dB", "101dB", "NaNdB"} {
		if _, err := ParseForm("fast", text); err == nil {
			t.Errorf("%q is accepted, want an error", text)
		}
	}
	if _, err := ParseForm("best", ""); err == nil {
		t.Error("a profile that does not exist is accepted, want an error")
	}
}

// TestSpread: any number of the first units is spread over the model's layers.
func TestSpread(t *testing.T) {
	f := &gguf.File{}
	for i := range 40 {
		name := fmt.Sprintf("blk.%02d.ffn_up.weight", i)
		f.Tensors = append(f.Tensors, gguf.Tensor{Name: name, Type: gguf.Q8_0, Shape: []int64{64, 64}})
	}
	all := Units(f)
	if len(all) != 40 {
		t.Fatalf("%d units, want 40", len(all))
	}
	for _, n := range []int{5, 8, 13, 21} {
		var held [40]bool
		for _, unit := range all[:n] {
			i := int(unit.Name[4]-'0')*10 + int(unit.Name[5]-'0')
			held[i] = true
		}
		gap, widest := 0, 0
		for _, h := range held {
			if gap++; h {
				gap = 0
			}
			widest = max(widest, gap)
		}
		if widest > 2*40/n {
			t.Errorf("the first %d units of 40 layers leave a gap of %d layers, want at most %d", n, widest, 2*40/n)
		}
	}
}
