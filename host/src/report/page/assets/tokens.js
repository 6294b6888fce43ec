// Completions, token by token.
"use strict";
