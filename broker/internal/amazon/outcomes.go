package amazon

import (
	"fmt"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/pgoutbox/outbox"
)

// Outcomes collects the outcomes of a request's entries, whose ids are their indexes: "0", "1" and so on. An entry that
// the answer doesn't mention has an unknown outcome.
type Outcomes struct {
	target string
	errs   []error
}

// newOutcomes returns the outcomes of n entries that were sent to a target.
func newOutcomes(target string, n int) *Outcomes {
	o := &Outcomes{target: target, errs: make([]error, n)}
	unknown := outbox.Unavailable(fmt.Errorf("%s: the answer says nothing about this message (outcome unknown)", target))
	for i := range o.errs {
		o.errs[i] = unknown
	}
	return o
}

// Accepted notes that the entry was accepted.
func (o *Outcomes) Accepted(id *string) {
	if i := o.index(id); i >= 0 {
		o.errs[i] = nil
	}
}

// Failed notes that the entry was not accepted, and why.
func (o *Outcomes) Failed(id, code, message *string, senderFault bool) {
	if i := o.index(id); i >= 0 {
		o.errs[i] = EntryError(o.target, aws.ToString(code), aws.ToString(message), senderFault)
	}
}

// EntryID returns the id of the entry with that index.
func EntryID(i int) *string { return aws.String(strconv.Itoa(i)) }

func (o *Outcomes) index(id *string) int {
	if i, err := strconv.Atoi(aws.ToString(id)); err == nil && 0 <= i && i < len(o.errs) {
		return i
	}
	return -1
}
