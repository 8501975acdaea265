//go:build ignore

// This file gives the Go names for the types and constants of wire.h; cgo -godefs generates
// wire_defs.go from it.

package preload

// #include "wire.h"
import "C"

const (
	magic       = C.MAGIC
	noLayout    = C.NO_LAYOUT
	maxLayouts  = C.MAX_LAYOUTS
	slotHeader  = C.SLOT_HEADER
	nameBytes   = C.NAME
	samples     = C.SAMPLES
	sampleBytes = C.SAMPLE

	maxRecord    = C.MAX_RECORD
	maxSources   = C.MAX_SRC
	maxNames     = C.MAX_OPS
	maxOps       = C.MAX_NODES
	maxTemplates = C.MAX_TEMPLATES
	maxIDs       = C.MAX_IDS
	maxSequences = C.MAX_SEQ_ID
)

// kinds of records
const (
	kindPad         = C.PAD
	kindProcess     = C.PROCESS
	kindImage       = C.IMAGE
	kindOpName      = C.OP_NAME
	kindFile        = C.FILE_SEEN
	kindTemplate    = C.TEMPLATE
	kindGraph       = C.GRAPH
	kindGraphEnd    = C.GRAPH_END
	kindDecodeBegin = C.DECODE_BEGIN
	kindDecodeEnd   = C.DECODE_END
)

type (
	wireLayout   C.struct_layout
	wireHeader   C.struct_header
	wireSlot     C.struct_slot
	wireRecord   C.struct_record
	wireProcess  C.struct_process_record
	wireImage    C.struct_image_record
	wireOpName   C.struct_op_name_record
	wireFile     C.struct_file_record
	wireSource   C.struct_source
	wireOp       C.struct_op
	wireTemplate C.struct_template_record
	wireIDs      C.struct_ids
	wireGraph    C.struct_graph_record
	wireGraphEnd C.struct_graph_end_record
	wireDecode   C.struct_decode_record
)
