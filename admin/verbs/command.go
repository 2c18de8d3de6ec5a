package verbs

import (
	"strings"

	"github.com/pgoutbox/outbox/internal/shell"
)

// Command is the command line that runs the verb with these parameters, as a shell takes it.
func (v Verb) Command(params any) string {
	text := "outbox " + v.Name
	behind, dashed := "", false
	for _, p := range v.Given(params) {
		for _, value := range p.Texts(params) {
			switch {
			case p.Behind():
				behind, dashed = behind+" "+shell.Word(value), dashed || strings.HasPrefix(value, "-")
			case value == "true":
				text += " --" + p.flag()
			default:
				text += " --" + p.flag() + " " + shell.Word(value)
			}
		}
	}
	if dashed {
		behind = " --" + behind
	}
	return text + behind
}

// flag is the parameter's name on a command line.
func (p Param) flag() string { return strings.ReplaceAll(p.Name, "_", "-") }
