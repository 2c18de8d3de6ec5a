package schema

import "strings"

// QuoteIdentifier writes a name as SQL has it.
func QuoteIdentifier(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// QuoteLiteral writes a text as SQL has it, whatever standard_conforming_strings says.
func QuoteLiteral(text string) string {
	quoted := `'` + strings.ReplaceAll(text, `'`, `''`) + `'`
	if strings.Contains(text, `\`) {
		return ` E` + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}
