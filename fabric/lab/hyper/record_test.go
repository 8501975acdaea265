package hyper

// This file tests records and edits in place.

import "testing"

// tree is the values and roles of records of records of records. Editing records in place must give
// the same as building them from scratch.
type tree struct {
	d, b   int
	roles  [3][]Vector
	values []Vector // (i*b + j)*b + k
}

func newTestTree(d, b int, seed uint64) *tree {
	rng := newRand(seed)
	t := &tree{d: d, b: b}
	for l := range t.roles {
		for range b {
			t.roles[l] = append(t.roles[l], dense(d, rng))
		}
	}
	for range b * b * b {
		t.values = append(t.values, dense(d, rng))
	}
	return t
}

// rebuild returns the top record's trits, computed by the definition from new sums.
func (t *tree) rebuild(threshold int32) Vector {
	below := t.values
	for l := 2; l >= 0; l-- {
		var level []Vector
		for first := 0; first < len(below); first += t.b {
			sum, v := NewSum(t.d), New(t.d)
			for k, value := range below[first : first+t.b] {
				sum.Add(product(t.roles[l][k], permuted(value, 1)), 1)
			}
			sum.Ternary(v, threshold)
			level = append(level, v)
		}
		below = level
	}
	return below[0]
}

// build makes the records with Child and Put. It returns the top record, and those of the last level.
func (t *tree) build(threshold int32) (*Record, []*Record) {
	top := NewRecord(t.d, threshold)
	var leaves []*Record
	for i := range t.b {
		middle := top.Child(t.roles[0][i])
		for j := range t.b {
			leaf := middle.Child(t.roles[1][j])
			leaves = append(leaves, leaf)
			for k := range t.b {
				leaf.Put(t.roles[2][k], t.values[(i*t.b+j)*t.b+k])
			}
		}
	}
	return top, leaves
}

// TestNestedEdits changes values in all ways, three levels down. The top record must be that of a
// tree built anew, bit for bit.
func TestNestedEdits(t *testing.T) {
	for _, threshold := range []int32{0, 1} {
		tree := newTestTree(320, 3, 41)
		top, leaves := tree.build(threshold)
		if !equal(top.Vector(), tree.rebuild(threshold)) {
			t.Fatal("a record that follows its children differs from one built at once")
		}
		rng := newRand(42)
		lenses := make([]*Lens, len(tree.values))
		for i, v := range tree.values {
			lenses[i] = leaves[i/3].Lens(tree.roles[2][i%3], v)
		}
		for round := range 150 {
			i := rng.IntN(len(lenses))
			switch rng.IntN(8) {
			case 0:
				v := sparse(tree.d, rng.IntN(tree.d+1), rng)
				lenses[i].Replace(v)
				tree.values[i].Copy(v)
			case 1:
				leaves[i/3].Delete(tree.roles[2][i%3], tree.values[i])
				leaves[i/3].Put(tree.roles[2][i%3], tree.values[i])
			default:
				for range rng.IntN(20) {
					at, trit := rng.IntN(tree.d), int8(rng.IntN(3)-1)
					lenses[i].Set(at, trit)
					tree.values[i].Set(at, trit)
					if lenses[i].At(at) != trit {
						t.Fatalf("trit %d reads as %d after it was set to %d", at, lenses[i].At(at), trit)
					}
				}
			}
			if !equal(lenses[i].Value(), tree.values[i]) {
				t.Fatalf("edit %d: the lens has another value than was set", round)
			}
			if !equal(top.Vector(), tree.rebuild(threshold)) {
				t.Fatalf("threshold %d: after edit %d the record differs from one built of the values",
					threshold, round)
			}
		}
	}
}

// FuzzEdits is TestNestedEdits for single trits, at any position and in any order.
func FuzzEdits(f *testing.F) {
	f.Add([]byte{0, 0, 0, 7, 63, 1, 7, 63, 2})
	f.Fuzz(func(t *testing.T, edits []byte) {
		tree := newTestTree(64, 2, 43)
		top, leaves := tree.build(0)
		for ; len(edits) >= 3; edits = edits[3:] {
			i, at, trit := int(edits[0]%8), int(edits[1]%64), int8(edits[2]%3)-1
			leaves[i/2].Lens(tree.roles[2][i%2], tree.values[i]).Set(at, trit)
			tree.values[i].Set(at, trit)
		}
		if !equal(top.Vector(), tree.rebuild(0)) {
			t.Error("the record differs from one built of the values")
		}
	})
}

// TestPaths queries all 64 values of a tree by path, without cleanup on the way (7 standard
// deviations), and by wrong paths.
func TestPaths(t *testing.T) {
	const d, b = 16384, 4
	tree := newTestTree(d, b, 44)
	top := tree.rebuild(0)
	m := NewMemory(d, len(tree.values))
	for _, v := range tree.values {
		m.Add(v)
	}
	read, scratch, scores := New(d), New(d), make([]int32, m.Len())
	// least is the least score of a right answer, greatest the greatest score of any answer for a
	// wrong path.
	least, greatest := int32(d), int32(0)
	for i := range tree.values {
		path := [3]Vector{tree.roles[0][i/16], tree.roles[1][i/4%4], tree.roles[2][i%4]}
		Read(read, scratch, top, path[:]...)
		got := m.Nearest(scores, read)
		if got.Item != i {
			t.Errorf("Nearest found value %d, want %d", got.Item, i)
		}
		least = min(least, scores[i])
		path[0], path[1] = path[1], path[0]
		Read(read, scratch, top, path[:]...)
		greatest = max(greatest, m.Nearest(scores, read).Score)
	}
	if least <= greatest {
		t.Errorf("a path in the wrong order scores %d, want less than %d, the least score of the right one",
			greatest, least)
	}
}

// TestOpen finds the value under a role, edits it in place, and reads the edited value in spite of
// the noise.
func TestOpen(t *testing.T) {
	const d, n = 8192, 20
	rng := newRand(45)
	m, record := NewMemory(d, n), NewRecord(d, 0)
	roles := make([]Vector, n)
	for i := range roles {
		roles[i] = dense(d, rng)
		record.Put(roles[i], m.At(m.Add(dense(d, rng))))
	}
	edited := New(d)
	for i := range roles {
		lens, match := record.Open(roles[i], m)
		if match.Item != i {
			t.Fatalf("Open found value %d, want %d", match.Item, i)
		}
		edited.Copy(m.At(i))
		for at := range d / 2 {
			edited.Set(at, -edited.At(at))
			lens.Set(at, -lens.At(at))
		}
		// Half of the trits are inverted now. So the old value is no more than noise, and the new
		// value is recognised as the old one was.
		read, scratch := New(d), New(d)
		Read(read, scratch, record.Vector(), roles[i])
		if old, now := Dot(read, m.At(i)), Dot(read, edited); old > 500 || now < 900 {
			t.Errorf("value %d: the old one scores %d, the new one %d, want at most 500 and at least 900", i, old, now)
		}
		if equal(m.At(i), edited) {
			t.Fatal("the edit changed the memory")
		}
	}
}
