package gguf

// This file finds out how many bytes the tensors have whose type ggml's main line does not read, or
// whose number stands for several types. What a file's offsets show decides.

// isUnsized reports whether a tensor's size cannot be told from its record alone.
func isUnsized(t *Tensor) bool { return !t.Type.Valid() || sharesNumber(t.Type) }

// hasElements reports whether a tensor has any elements: whether none of its dimensions is 0.
func hasElements(t *Tensor) bool {
	for _, n := range t.Shape {
		if n == 0 {
			return false
		}
	}
	return true
}

// layOut gives a type and a size to the tensors of f that are unsized. They are in the order of their
// absolute offsets.
//
// All tensors of a number have the same type: the first with that number which explains their
// offsets. If there is none, each is opaque. Then it reaches to where the next one begins, or to the
// end of the file.
func layOut(f *File) {
	byNumber := map[uint32][]int{} // indices of the tensors
	for i := range f.Tensors {
		if t := &f.Tensors[i]; isUnsized(t) {
			byNumber[t.Type.Number()] = append(byNumber[t.Type.Number()], i)
		}
	}
	for number, tensors := range byNumber {
		t := chooseType(f, number, tensors)
		for _, i := range tensors {
			x := &f.Tensors[i]
			x.Type, x.Size = t, roomOf(f, i)
			if t.Known() {
				// It cannot fail where chooseType has looked. Of a type of the main line, the size was known before.
				x.Size, _ = t.Bytes(x.Shape)
			}
			if !hasElements(x) {
				x.Size = 0
			}
		}
	}
}

// chooseType returns the type that explains where tensors of a number lie.
func chooseType(f *File, number uint32, tensors []int) Type {
	for t := range typesWithNumber(number) {
		explains := true
		for _, i := range tensors {
			explains = explains && fits(f, i, t)
		}
		if explains {
			return t
		}
	}
	switch t := Type(number); {
	case t.Valid():
		return t // the caller finds what is wrong with it
	case t.Known():
		return t | opaque // the number of a known type, but another fork's
	default:
		return t
	}
}

// fits reports whether tensor i of f may have a type. A type of ggml's main line fits where there is
// room for it. One of a fork must explain where the next tensor begins: forks have given the same
// number to different types.
func fits(f *File, i int, t Type) bool {
	size, err := t.Bytes(f.Tensors[i].Shape)
	room := roomOf(f, i)
	if err != nil || size > room {
		return false
	}
	return t.Valid() || i == len(f.Tensors)-1 || room-size < f.Alignment
}

// roomOf is how many bytes there are from where tensor i of f begins to where the next one does, or to
// the end of the file.
func roomOf(f *File, i int) int64 {
	if i+1 < len(f.Tensors) {
		return f.Tensors[i+1].Offset - f.Tensors[i].Offset
	}
	return f.Size - f.Tensors[i].Offset
}

// compareBools orders false before true.
func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
