"""Which line of the user's code: from a frame, a traceback, an object or a name in a class."""

from __future__ import annotations

from .assignments import called as called
from .assignments import constructed as constructed
from .assignments import giving_call as giving_call
from .assignments import is_no_tools_class as is_no_tools_class
from .assignments import of_assignment as of_assignment
from .assignments import of_attribute as of_attribute
from .assignments import of_parameter as of_parameter
from .locations import count_as_own as count_as_own
from .locations import is_installed as is_installed
from .locations import is_own_class as is_own_class
from .locations import of_error as of_error
from .locations import of_frame as of_frame
from .locations import of_line as of_line
from .locations import of_object as of_object
from .locations import of_own_class as of_own_class
from .locations import of_traceback as of_traceback
from .locations import of_user_object as of_user_object
from .locations import rank as rank
from .searching import deciding_lines as deciding_lines
from .searching import file_matches as file_matches
from .searching import line_above as line_above
from .searching import matches as matches
from .searching import search as search
from .syntax import FUNCTIONS as FUNCTIONS
from .syntax import alias_above as alias_above
from .syntax import alias_at as alias_at
from .syntax import around as around
from .syntax import assigned_name as assigned_name
from .syntax import default_of as default_of
from .syntax import function_around as function_around
from .syntax import functions_around as functions_around
from .syntax import holds as holds
from .syntax import names_read as names_read
from .syntax import nodes as nodes
from .syntax import own_nodes as own_nodes
from .syntax import parameters as parameters
from .syntax import parsed as parsed
from .syntax import reads_old_name as reads_old_name
from .syntax import statement as statement
from .syntax import tree_of as tree_of
from .syntax import uncalled as uncalled
from .syntax import untaken_in as untaken_in
from .syntax import untaken_lines as untaken_lines
from .syntax import writes as writes
