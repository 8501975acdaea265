package handover

import (
	"math"
	"testing"

	"tensorcast/fabric/device"
	"tensorcast/gguf"
)

// TestRoom: the device takes as much as there is, as little as is enough, or nothing.
func TestRoom(t *testing.T) {
	const mib = 1 << 20
	tensors := []device.Tensor{{Name: "a", Matrices: []device.Extent{{Type: gguf.Q8_0, Rows: 1 << 18, Cols: 4096}}}} // 1088 MiB
	fast, err := ParseForm("fast", "")
	if err != nil {
		t.Fatal(err)
	}
	balanced, err := ParseForm("", "23.5dB")
	if err != nil {
		t.Fatal(err)
	}
	exact, err := ParseForm("accurate", "")
	if err != nil {
		t.Fatal(err)
	}
	mixture := func(experts int) []device.Tensor {
		t := device.Tensor{Name: "e"}
		for range experts {
			t.Matrices = append(t.Matrices, device.Extent{Type: gguf.Q8_0, Rows: (1 << 18) / experts, Cols: 4096})
		}
		return []device.Tensor{t}
	}
	if Room(mixture(16), 1088*mib, 600*mib, 140*mib, fast).Bytes == 0 || Room(mixture(16), 1088*mib, 600*mib, 140*mib, balanced).Bytes != 0 {
		t.Error("of a mixture, 'fast' is to be handed over, and 'balanced' not")
	}
	if Room(mixture(64), 1088*mib, 600*mib, 140*mib, fast).Bytes != 0 || Room(mixture(64), 1088*mib, 1000*mib, 140*mib, fast).Bytes == 0 {
		t.Error("of a mixture with many experts, it is to be handed over where nothing is read then, and only there")
	}
	for _, test := range []struct {
		name        string
		form        device.Form
		room        int64
		least, most int64
	}{
		{"fits", fast, 1088 * mib, 0, 0},
		{"larger than the file's blocks", exact, 600 * mib, 0, 0},
		{"all that there is", fast, 300 * mib, 160 * mib, 160 * mib},
		{"the rest fits", fast, 1000 * mib, 170 * mib, 230 * mib},
		{"some less is read", balanced, 600 * mib, 460 * mib, 460 * mib},
		{"hardly less is read", balanced, 300 * mib, 0, 0},
		{"no room", fast, 100 * mib, 0, 0},
		{"less than none", fast, -mib, 0, 0},
	} {
		if got := Room(tensors, 1088*mib, test.room, 140*mib, test.form).Bytes; got < test.least || got > test.most {
			t.Errorf("%s: %d MiB, want %d to %d", test.name, got/mib, test.least/mib, test.most/mib)
		}
	}
}

// TestRoomFiner: where all fits with the planes that the bound needs, third planes are planned as far as there is room for them; and what is planned fits.
func TestRoomFiner(t *testing.T) {
	const mib = 1 << 20
	e := device.Extent{Type: gguf.Q8_0, Rows: 1 << 12, Cols: 4096}
	var tensors []device.Tensor
	for range 64 { // 1088 MiB
		tensors = append(tensors, device.Tensor{Name: "a", Matrices: []device.Extent{e}})
	}
	form, err := ParseForm("fast", "")
	if err != nil {
		t.Fatal(err)
	}
	form.Finer = true
	if !form.MayBeFiner(2) {
		t.Skip("no third planes on this processor")
	}
	two, three := 64*int64(form.Bytes(&e, 2)), 64*int64(form.Bytes(&e, 3))
	for _, test := range []struct {
		room  int64
		finer bool
		whole bool // all tensors are held
	}{{1000 * mib, true, false}, {860 * mib, true, false}, {700 * mib, true, true}, {620 * mib, true, true}, {590 * mib, false, true}, {300 * mib, false, true}} {
		p := Room(tensors, 1088*mib, test.room, 140*mib, form)
		left := test.room - 140*mib - p.Bytes - p.Rest // beside planes and what is not held
		if p.Finer != test.finer || p.Weights == 1088*mib != test.whole || p.Finer && (left < 0 || left > 12*mib) || p.Bytes > test.room-140*mib || p.Least > p.Bytes || p.Finer && p.Least >= p.Bytes || p.Weights+p.Rest != 1088*mib {
			t.Errorf("%d MiB: %+v, %d MiB are left; two planes take %d MiB, three %d", test.room/mib, p, left/mib, two/mib, three/mib)
		}
	}
	if p := Room(tensors, 1088*mib, 1100*mib, 140*mib, form); p != (Plan{}) {
		t.Errorf("of what fits: %+v", p)
	}
}

// TestParseForm: an error in decibels comes before a profile's.
func TestParseForm(t *testing.T) {
	if f, err := ParseForm("fast", "20dB"); err != nil || math.Abs(f.Bound-20) > 1e-9 {
		t.Errorf("%+v, %v", f, err)
	}
	for _, text := range []string{"20", "dB", "-3dB", "0dB", "101dB", "NaNdB"} {
		if _, err := ParseForm("fast", text); err == nil {
			t.Errorf("%q is taken", text)
		}
	}
	if _, err := ParseForm("best", ""); err == nil {
		t.Error("a profile that does not exist is taken")
	}
}

// TestSpread: the layers of which the device holds the first few are spread over the model.
func TestSpread(t *testing.T) {
	f := &gguf.File{}
	for i := range 40 {
		f.Tensors = append(f.Tensors, gguf.Tensor{Name: "blk." + string(rune('0'+i/10)) + string(rune('0'+i%10)) + ".ffn_up.weight", Type: gguf.Q8_0, Shape: []int64{64, 64}})
	}
	all := Tensors(f)
	if len(all) != 40 {
		t.Fatalf("%d tensors", len(all))
	}
	for _, n := range []int{5, 8, 13, 21} {
		var held [40]bool
		for _, tensor := range all[:n] {
			i := int(tensor.Name[4]-'0')*10 + int(tensor.Name[5]-'0')
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
			t.Errorf("of %d layers of 40, %d follow each other without one", n, widest)
		}
	}
}

// TestRoomShort: where all fits with planes that the bound needs, some of them may go while memory is short; where it does not, the device decides which go first.
func TestRoomShort(t *testing.T) {
	const mib = 1 << 20
	form, err := ParseForm("balanced", "")
	if err != nil || form.Short != 15 {
		t.Fatalf("%+v, %v", form, err)
	}
	if !form.MayBeCoarser(3) {
		t.Skip("needs a processor with AVX2, and assembly: only planes that are multiplied as bands come and go one by one")
	}
	if given, err := ParseForm("balanced", "20dB"); err != nil || given.Short != 0 {
		t.Errorf("an error that is given is meant: %+v, %v", given, err)
	}
	form.Finer = true
	tensors := []device.Tensor{{Name: "a", Matrices: []device.Extent{{Type: gguf.Q8_0, Rows: 1 << 19, Cols: 2048}}}}
	p := Room(tensors, 1088*mib, 950*mib, 140*mib, form)
	if !p.Finer || p.Least <= p.Bytes*6/10 || p.Least >= p.Bytes*3/4 || p.Rest <= 0 || p.Rest > 950*mib-140*mib-p.Bytes+mib {
		t.Errorf("where it fits: %+v", p)
	}
	if p := Room(tensors, 1088*mib, 550*mib, 140*mib, form); p.Finer || p.Least != p.Bytes || p.Bytes == 0 {
		t.Errorf("where it does not: %+v", p)
	}
}
