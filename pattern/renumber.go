package pattern

// Renumber is a copy of the cycle whose file i has the number numbers[i]. Files of other numbers in between are
// empty. CycleRead.File is an index of Files, as always. Reads are copied, so that the two cycles can be changed
// independently.
func (c *Cycle) Renumber(numbers []int) *Cycle {
	renumbered := &Cycle{Reads: make([]CycleRead, len(c.Reads))}
	for i, number := range numbers {
		for len(renumbered.Files) <= number {
			renumbered.Files = append(renumbered.Files, CycleFile{})
		}
		if i < len(c.Files) {
			renumbered.Files[number] = c.Files[i]
		}
	}
	for i, r := range c.Reads {
		r.File = numbers[r.File]
		renumbered.Reads[i] = r
	}
	return renumbered
}
