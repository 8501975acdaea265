// Package mixture keeps and reads the experts of a mixture-of-experts model.
//
// A router chooses a few experts of a layer for each token. Those that it has chosen are read at once, beside
// each other, before the target touches them one page after the other. Experts that are likely to be chosen
// soon stay in what room the weights leave that every token reads. Those that are expected to be chosen last
// give way.
//
// What is [Known] of experts before any was chosen is where scores begin, and what is read first.
//
// A [Predictor] may say what a router is going to choose. Then experts are read before they are chosen, as
// far as the disk is measured to be idle.
//
// Nothing here is safe for concurrent use.
package mixture
